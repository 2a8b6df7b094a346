mod lock;

pub mod ledger;
pub mod oracle;
