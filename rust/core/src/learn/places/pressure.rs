//! [`Pressure`]: how much of what was cached was evicted, and what its bytes would save otherwise.

use std::f64::consts::LN_2;

/// Cached content counts as at least this share of the memory. Else a moment in which nothing is
/// cached would count as many lives.
const LEAST_CACHED: f64 = 1.0 / 64.0;

/// Lives over which late hits are counted. With one life, the rules
/// forget another load sooner, but documents that share a long prefix lose hits.
const LIVES: f64 = 3.0;

/// A clock that runs with evictions, and what bytes are worth. While nothing is evicted, the clock
/// stands and bytes are worth nothing.
///
/// By age, content lasts for the time in which as much is evicted as is cached. That time is one *life*,
/// however fast requests come, and it is the unit of this clock. What running requests hold is not
/// cached: the more of the memory they hold, the sooner the rest is evicted.
#[derive(Clone, Debug)]
pub struct Pressure {
    /// Tokens whose attention fills the memory.
    capacity: f64,
    /// The share of the memory that cached content takes, on average over the last life; 0 until
    /// something is evicted.
    cached: f64,
    /// The time, in lives.
    now: f64,
    /// Tokens saved a life by content in the second half of its own, lately.
    saved_late: f64,
    /// Largest part of a single hit in them.
    largest_late: f64,
}

impl Pressure {
    /// Nothing was evicted from a memory that holds the attention of `capacity` tokens.
    pub fn new(capacity: f64) -> Self {
        Self {
            capacity: capacity.max(1.0),
            cached: 0.0,
            now: 0.0,
            saved_late: 0.0,
            largest_late: 0.0,
        }
    }

    /// Content that took a share `evicted` of the memory was evicted, where cached content took a share
    /// `cached`.
    pub fn on_evicted(&mut self, evicted: f64, cached: f64) {
        let cached = cached.max(LEAST_CACHED);
        let before = if self.cached > 0.0 { self.cached } else { cached };
        self.cached = before + (cached - before) * (evicted / before).min(1.0);
        let lives = evicted / self.cached;
        self.now += lives;
        let left = (1.0 - lives / LIVES).max(0.0);
        self.saved_late *= left;
        self.largest_late *= left;
    }

    /// A request went on from content last used at `last_used`, and saved `tokens`.
    pub fn on_hit(&mut self, last_used: f64, tokens: f64) {
        if self.now - last_used > 0.5 {
            self.saved_late += tokens / LIVES;
            self.largest_late = self.largest_late.max(tokens / LIVES);
        }
    }

    /// Tokens whose attention takes as much as is cached, on average over the last life.
    pub fn cached_tokens(&self) -> f64 {
        self.capacity * self.cached
    }

    /// Lives so far.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Tokens that the attention of one token more would save while it lasts: it makes every life
    /// longer by `1 / C`, where `C` tokens are cached. Let hits fall with age as `1 / age`. Those
    /// in the second half of a life then save `ln 2` of a whole life with the hits of its end.
    ///
    /// The largest hit is left out: one is no evidence, and a single late hit of a long prompt would make
    /// bytes dear for lives.
    pub fn price(&self) -> f64 {
        let saved = (self.saved_late - self.largest_late) / LN_2;
        saved / (self.capacity * self.cached.max(LEAST_CACHED))
    }
}
