//! Doubly linked lists threaded through arrays: O(1) at both ends and in the middle, no allocation.

/// The links of `num_nodes` nodes and of the sentinels of `num_lists` circular lists.
///
/// A node is in at most one list. A removed node keeps its links, so that removals undone in
/// reverse order restore every list exactly ([`Links::restore`]).
#[derive(Debug)]
pub(crate) struct Links {
    next: Box<[u32]>,
    prev: Box<[u32]>,
    num_nodes: u32,
}

/// One list of a [`Links`]: the index of its sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List(u32);

/// Nodes whose links are read together.
const RUN: u32 = 8;

/// Whether each of the [`RUN`] nodes from `node` on is followed by its neighbour in number.
#[inline]
fn is_run(next: &[u32], node: u32) -> bool {
    let links = &next[node as usize..];
    let Some(links) = links.first_chunk::<{ RUN as usize }>() else { return false };
    links.iter().zip(node + 1..).fold(0, |differ, (&to, neighbour)| differ | (to ^ neighbour)) == 0
}

/// Appends `count` nodes from `node` on to `out`; returns the one after them.
#[inline]
fn walk<T>(next: &[u32], mut node: u32, count: u32, out: &mut Vec<T>, wrap: fn(u32) -> T) -> u32 {
    out.extend((0..count).map(|_| {
        let this = node;
        node = next[node as usize];
        wrap(this)
    }));
    node
}

impl Links {
    pub(crate) fn new(num_nodes: u32, num_lists: u32) -> Self {
        let total = num_nodes as usize + num_lists as usize;
        let mut links = Self {
            next: vec![0; total].into_boxed_slice(),
            prev: vec![0; total].into_boxed_slice(),
            num_nodes,
        };
        for list in 0..num_lists {
            links.clear(links.list(list));
        }
        links
    }

    /// The `number`th list.
    #[inline]
    pub(crate) fn list(&self, number: u32) -> List {
        List(self.num_nodes + number)
    }

    /// Forgets the nodes of `list` without visiting them.
    pub(crate) fn clear(&mut self, list: List) {
        self.next[list.0 as usize] = list.0;
        self.prev[list.0 as usize] = list.0;
    }

    #[inline]
    pub(crate) fn front(&self, list: List) -> Option<u32> {
        self.after(list.0)
    }

    /// The node after `node` in its list.
    #[inline]
    pub(crate) fn after(&self, node: u32) -> Option<u32> {
        let next = self.next[node as usize];
        (next < self.num_nodes).then_some(next)
    }

    /// The node before `node` in its list.
    pub(crate) fn before(&self, node: u32) -> Option<u32> {
        let prev = self.prev[node as usize];
        (prev < self.num_nodes).then_some(prev)
    }

    pub(crate) fn back(&self, list: List) -> Option<u32> {
        self.before(list.0)
    }

    #[inline]
    pub(crate) fn insert_after(&mut self, at: u32, node: u32) {
        let next = self.next[at as usize];
        self.next[node as usize] = next;
        self.prev[node as usize] = at;
        self.prev[next as usize] = node;
        self.next[at as usize] = node;
    }

    #[inline]
    pub(crate) fn push_back(&mut self, list: List, node: u32) {
        self.insert_after(self.prev[list.0 as usize], node);
    }

    #[inline]
    pub(crate) fn push_front(&mut self, list: List, node: u32) {
        self.insert_after(list.0, node);
    }

    /// Puts `nodes` at the front, the first of them first.
    #[inline]
    pub(crate) fn push_front_all(&mut self, list: List, nodes: impl Iterator<Item = u32>) {
        self.push_front_if(list, nodes, |_| true);
    }

    /// As [`Links::push_front_all`] if every node `joins`; else the list stays as it was.
    #[inline]
    pub(crate) fn push_front_if(
        &mut self,
        list: List,
        nodes: impl Iterator<Item = u32>,
        mut joins: impl FnMut(u32) -> bool,
    ) -> bool {
        let first = self.next[list.0 as usize];
        let mut at = list.0;
        for node in nodes {
            if !joins(node) {
                self.next[list.0 as usize] = first;
                return false;
            }
            self.next[at as usize] = node;
            self.prev[node as usize] = at;
            at = node;
        }
        self.next[at as usize] = first;
        self.prev[first as usize] = at;
        true
    }

    /// Puts `nodes` at the back, the last of them last.
    #[inline]
    pub(crate) fn push_back_all(&mut self, list: List, nodes: impl Iterator<Item = u32>) {
        let mut at = self.prev[list.0 as usize];
        for node in nodes {
            self.next[at as usize] = node;
            self.prev[node as usize] = at;
            at = node;
        }
        self.next[at as usize] = list.0;
        self.prev[list.0 as usize] = at;
    }

    /// Removes the first `count` nodes, which must be there, and appends them to `out` in order.
    #[inline]
    pub(crate) fn pop_front_all<T>(
        &mut self,
        list: List,
        count: u32,
        out: &mut Vec<T>,
        wrap: fn(u32) -> T,
    ) {
        let (next, mut node) = (&*self.next, self.next[list.0 as usize]);
        // A walk waits for each link before it can read the next one. Where numbers follow each
        // other, as in memory that was never used, the links are guessed and confirmed together.
        for _ in 0..count / RUN {
            if is_run(next, node) {
                out.extend((node..node + RUN).map(wrap));
                node = next[(node + RUN - 1) as usize];
            } else {
                node = walk(next, node, RUN, out, wrap);
            }
        }
        let first = walk(next, node, count % RUN, out, wrap);
        self.next[list.0 as usize] = first;
        self.prev[first as usize] = list.0;
    }

    #[inline]
    pub(crate) fn remove(&mut self, node: u32) {
        self.remove_run(Some((node, node)));
    }

    /// Removes a node after a run of nodes that are to be removed, given by its first and its last:
    /// with them if it stands before them, else by itself. Returns the run that is still to be
    /// removed.
    #[inline]
    pub(crate) fn remove_after(&mut self, run: Option<(u32, u32)>, node: u32) -> (u32, u32) {
        match run {
            Some((first, last)) if self.prev[first as usize] == node => (node, last),
            _ => {
                self.remove_run(run);
                (node, node)
            }
        }
    }

    /// Removes a run of nodes. Restored one by one, from its first to its last, it comes back when
    /// the last is there.
    #[inline]
    pub(crate) fn remove_run(&mut self, run: Option<(u32, u32)>) {
        let Some((first, last)) = run else { return };
        let (next, prev) = (self.next[last as usize], self.prev[first as usize]);
        self.next[prev as usize] = next;
        self.prev[next as usize] = prev;
    }

    /// Undoes the latest [`Links::remove`] that is not yet undone.
    #[inline]
    pub(crate) fn restore(&mut self, node: u32) {
        let (next, prev) = (self.next[node as usize], self.prev[node as usize]);
        self.next[prev as usize] = node;
        self.prev[next as usize] = node;
    }

    /// Removes and returns the first node.
    #[inline]
    pub(crate) fn pop_front(&mut self, list: List) -> Option<u32> {
        let node = self.front(list)?;
        self.remove(node);
        Some(node)
    }

    /// Moves all of `from` behind `to`.
    pub(crate) fn append(&mut self, to: List, from: List) {
        let (first, last) = (self.next[from.0 as usize], self.prev[from.0 as usize]);
        if first == from.0 {
            return;
        }
        let tail = self.prev[to.0 as usize];
        self.next[tail as usize] = first;
        self.prev[first as usize] = tail;
        self.next[last as usize] = to.0;
        self.prev[to.0 as usize] = last;
        self.clear(from);
    }

    /// Walks a list from its front.
    pub(crate) fn iter(&self, list: List) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.front(list), |&node| self.after(node))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.next.len() + self.prev.len()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests;
