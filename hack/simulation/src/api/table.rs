//! The objects of one kind, the log of their changes, and what one watcher has seen of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The objects of one kind, by name, and their changes in order.
#[derive(Clone, Debug)]
pub struct Table<K> {
    objects: BTreeMap<String, Arc<K>>,
    log: VecDeque<(String, Option<Arc<K>>)>,
    /// Number of the first change in the log.
    first: u64,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), log: VecDeque::new(), first: 0 }
    }
}

/// How many changes are kept: a watcher that is further behind must list again (410).
const KEPT: usize = 400;

impl<K> Table<K> {
    /// The object of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<K>> {
        self.objects.get(name)
    }

    /// All objects, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<K>)> {
        self.objects.iter()
    }

    /// All objects, in the order of their names.
    pub fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values()
    }

    /// The number of the next change.
    pub fn next(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    /// The changes from that number on, as far as they are kept.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &(String, Option<Arc<K>>)> {
        let skipped = usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.log.iter().skip(skipped)
    }

    /// An object is created, changed or (`None`) gone.
    pub fn set(&mut self, name: &str, object: Option<Arc<K>>) {
        match &object {
            Some(object) => self.objects.insert(name.to_owned(), object.clone()),
            None => self.objects.remove(name),
        };
        self.log.push_back((name.to_owned(), object));
        if self.log.len() > KEPT {
            self.log.pop_front();
            self.first += 1;
        }
    }

    /// Forgets changes that nobody needs any more.
    pub fn trim(&mut self, before: u64) {
        while self.first < before && self.log.pop_front().is_some() {
            self.first += 1;
        }
    }
}

/// One change as a watcher learns of it.
#[derive(Clone, Debug)]
pub struct Change<K> {
    /// The object's name.
    pub name: String,
    /// What was known.
    pub old: Option<Arc<K>>,
    /// What is known now.
    pub new: Option<Arc<K>>,
}

/// What one watcher has seen.
#[derive(Clone, Debug)]
pub struct View<K> {
    /// The objects it knows.
    pub objects: BTreeMap<String, Arc<K>>,
    /// How often it has listed again.
    pub relists: u64,
    next: u64,
}

impl<K> Default for View<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), relists: 0, next: 0 }
    }
}

impl<K> View<K> {
    /// The object of that name.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.objects.get(name).cloned()
    }

    /// All objects that are known.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }

    /// The number of the next change that it has not seen.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether changes are missing that the table has forgotten: the watch ends with 410.
    pub fn is_gone(&self, table: &Table<K>) -> bool {
        self.next < table.first
    }

    /// The changes up to that number arrive, in order.
    pub fn catch_up(&mut self, table: &Table<K>, upto: u64) -> Vec<Change<K>> {
        let mut changes = Vec::new();
        while self.next < upto.min(table.next()) && self.next >= table.first {
            let index = usize::try_from(self.next - table.first).unwrap_or(usize::MAX);
            let Some((name, new)) = table.log.get(index) else { break };
            changes.push(self.learn(name, new.clone()));
            self.next += 1;
        }
        changes
    }

    /// Lists again. `first` is the list with which a process begins: it is no relist.
    pub fn relist(&mut self, table: &Table<K>, first: bool) -> Vec<Change<K>> {
        let known: Vec<String> = self.objects.keys().filter(|name| table.get(name).is_none()).cloned().collect();
        let mut changes: Vec<_> = known.into_iter().map(|name| self.learn(&name, None)).collect();
        for (name, object) in table.iter() {
            let same = self.objects.get(name).is_some_and(|known| Arc::ptr_eq(known, object));
            if !same {
                changes.push(self.learn(name, Some(object.clone())));
            }
        }
        self.next = table.next();
        self.relists += u64::from(!first);
        changes
    }

    fn learn(&mut self, name: &str, new: Option<Arc<K>>) -> Change<K> {
        let old = match &new {
            Some(object) => self.objects.insert(name.to_owned(), object.clone()),
            None => self.objects.remove(name),
        };
        Change { name: name.to_owned(), old, new }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_sees_every_change_in_order_and_one_too_late_lists_again() {
        let mut table = Table::default();
        let mut view = View::default();
        for value in 0..3 {
            table.set("a", Some(Arc::new(value)));
        }
        let seen = view.catch_up(&table, 2);
        assert_eq!(seen.iter().map(|change| **change.new.as_ref().unwrap()).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(view.get("a").as_deref(), Some(&1));
        table.set("a", None);
        table.set("b", Some(Arc::new(9)));
        table.trim(4);
        assert!(view.is_gone(&table) && view.catch_up(&table, 9).is_empty());
        let changes = view.relist(&table, false);
        assert_eq!(
            changes.iter().map(|change| (change.name.as_str(), change.new.is_some())).collect::<Vec<_>>(),
            [("a", false), ("b", true)]
        );
        assert_eq!((view.relists, view.next()), (1, table.next()));
    }
}
