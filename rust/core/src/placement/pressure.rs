//! [`Pressure`]: how much of the memory was evicted, and what its bytes would save otherwise.

/// A clock that runs with evictions, and what bytes are worth. While nothing is evicted, the clock
/// stands and bytes are worth nothing.
///
/// By age, content lasts for the time in which as much is evicted as the memory holds. That time is
/// one *life*, however fast requests come, and it is the unit of this clock.
#[derive(Clone, Debug)]
pub struct Pressure {
    /// Tokens whose attention fills the memory.
    capacity: f64,
    /// The time, in lives.
    now: f64,
    /// Tokens saved in the last life, or so, by content in the second half of its own.
    saved_late: f64,
}

impl Pressure {
    /// Nothing was evicted from a memory that holds the attention of `capacity` tokens.
    #[must_use]
    pub fn new(capacity: f64) -> Self {
        Self { capacity: capacity.max(1.0), now: 0.0, saved_late: 0.0 }
    }

    /// So large a share of the memory was evicted.
    pub fn on_evicted(&mut self, share: f64) {
        self.now += share;
        self.saved_late *= (1.0 - share).max(0.0);
    }

    /// A request went on from content last used at `last_used`, and saved `tokens`.
    pub fn on_hit(&mut self, last_used: f64, tokens: f64) {
        if self.now - last_used > 0.5 {
            self.saved_late += tokens;
        }
    }

    /// Lives so far.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Tokens that the attention of one token more would save while it lasts. A memory of `C` tokens
    /// lets `saved_late` tokens be saved a life in the half life before eviction: `2 · saved_late` a
    /// life of longer age. One token more makes every life longer by `1 / C`.
    #[must_use]
    pub fn price(&self) -> f64 {
        2.0 * self.saved_late / self.capacity
    }
}
