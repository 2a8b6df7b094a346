mod lock;

pub mod array;
pub mod ledger;
pub mod oracle;
