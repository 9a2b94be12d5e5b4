//! [`Pressure`]: how long cached content lasts, and what its bytes would save otherwise.

/// What bytes are worth. All of it is measured: while nothing is evicted, they are worth nothing.
#[derive(Clone, Debug)]
pub struct Pressure {
    /// Tokens whose attention fills the memory.
    capacity: f64,
    /// Ticks that content lasts, infinite while nothing is evicted.
    span: f64,
    /// Since when `evicted` and `saved_late` count.
    since: u64,
    /// Share of the memory evicted.
    evicted: f64,
    /// Tokens saved by content that was cached for more than half the span.
    saved_late: f64,
    /// The same a tick, smoothed.
    late_rate: f64,
}

/// Share of the memory after whose eviction the span is measured anew.
const WINDOW: f64 = 1.0 / 16.0;

/// Share of a new measurement in the smoothed value.
const WEIGHT: f64 = 0.25;

impl Pressure {
    /// Nothing was evicted from a memory that holds the attention of `capacity` tokens.
    #[must_use]
    pub fn new(capacity: f64) -> Self {
        Self {
            capacity: capacity.max(1.0),
            span: f64::INFINITY,
            since: 0,
            evicted: 0.0,
            saved_late: 0.0,
            late_rate: 0.0,
        }
    }

    /// So large a share of the memory was evicted until tick `now`.
    pub fn on_evicted(&mut self, share: f64, now: u64) {
        self.evicted += share;
        if self.evicted < WINDOW {
            return;
        }
        let ticks = (now - self.since).max(1) as f64;
        let (span, rate) = (ticks / self.evicted, self.saved_late / ticks);
        if self.span.is_finite() {
            self.span += WEIGHT * (span - self.span);
            self.late_rate += WEIGHT * (rate - self.late_rate);
        } else {
            self.span = span;
            self.late_rate = rate;
        }
        (self.since, self.evicted, self.saved_late) = (now, 0.0, 0.0);
    }

    /// A request went on from content that was cached for `age` ticks and saved `tokens`.
    pub fn on_hit(&mut self, age: u64, tokens: f64) {
        if age as f64 > self.span / 2.0 {
            self.saved_late += tokens;
        }
    }

    /// Ticks that content lasts between its last use and its eviction, infinite while nothing is
    /// evicted.
    #[must_use]
    pub fn span(&self) -> f64 {
        self.span
    }

    /// Tokens that the attention of one token more would save while it lasts. Content in the older
    /// half of its life saves `late_rate` a tick; a memory larger by one token makes every life
    /// longer by `span / capacity`, which lets `late_rate / (span / 2)` more be saved a tick
    /// for each tick of it, over one span.
    #[must_use]
    pub fn price(&self) -> f64 {
        if self.span.is_finite() { 2.0 * self.late_rate * self.span / self.capacity } else { 0.0 }
    }
}
