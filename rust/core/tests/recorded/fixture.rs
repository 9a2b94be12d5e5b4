//! A fixture: lives of an engine, each a list of calls and of vLLM's answers.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::read::GzDecoder;
use serde::Deserialize;

/// The first line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    pub(crate) vllm: String,
    pub(crate) num_lives: usize,
    pub(crate) num_steps: usize,
}

/// An engine, and what was done with it.
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) start: Start,
    pub(crate) steps: Vec<Step>,
}

/// The line that starts a life.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    life: String,
    seed: u32,
    pub(crate) num_blocks: u32,
    pub(crate) config: Config,
}

/// The core's configuration, by the names of its fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the engine")]
pub(crate) struct Config {
    pub(crate) release_rules: Vec<String>,
    pub(crate) groups: Vec<Group>,
    pub(crate) lookup: String,
    pub(crate) lookup_groups: Vec<(Vec<u32>, bool)>,
    pub(crate) fine_grained: bool,
    pub(crate) hash_block_size: u32,
    pub(crate) scheduler_block_size: u32,
    pub(crate) max_model_len: u32,
    pub(crate) enable_events: bool,
    pub(crate) enable_residency: bool,
    pub(crate) retention_interval: Option<u32>,
    pub(crate) num_reprefillable: u32,
    pub(crate) num_hash_lookahead: u32,
    pub(crate) drops_eagle_block: bool,
    pub(crate) drops_eagle_checkpoint: bool,
    pub(crate) shared_prefix_checkpoint: bool,
    pub(crate) watermark_blocks: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) kind: String,
    pub(crate) block_size: u32,
    pub(crate) use_eagle: bool,
    pub(crate) admission_cap: Option<u32>,
    pub(crate) zeroes_new_blocks: bool,
    pub(crate) window: u32,
    pub(crate) extra_retained: u32,
    pub(crate) num_speculative: u32,
    pub(crate) checkpoint_alignment: Option<u32>,
    pub(crate) has_checkpoint_blocks: bool,
}

/// A call, what the request was like, and what was there afterwards.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// The request's number, or 0 where the call is about none.
    #[serde(default)]
    pub(crate) request: u32,
    /// Tokens computed, known, of the prompt, in flight; the boundary; whether it waits.
    #[serde(default)]
    pub(crate) facts: Option<[u32; 6]>,
    /// Digests that no earlier step of the request named.
    #[serde(default)]
    pub(crate) digests: Vec<u32>,
    pub(crate) call: Call,
    #[serde(default)]
    pub(crate) events: Vec<Event>,
    /// Blocks that can be handed out.
    #[serde(default)]
    pub(crate) free: u32,
}

/// Block ids by group.
pub(crate) type Blocks = Vec<Vec<u32>>;

/// A call with its arguments and vLLM's answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Call {
    Allocate(Allocate),
    Blocks {
        blocks: Blocks,
    },
    CachedTokens {
        #[serde(default)]
        tokens: u32,
    },
    Commit {
        #[serde(default)]
        tokens: u32,
    },
    Demand {
        span: Span,
        hit: Option<Blocks>,
        #[serde(default)]
        blocks: i64,
    },
    Evict {
        blocks: Vec<u32>,
    },
    Free {},
    FreeBlocks {
        #[serde(default)]
        blocks: Vec<u32>,
    },
    Hit {
        #[serde(default)]
        limit: u32,
        blocks: Blocks,
        #[serde(default)]
        tokens: u32,
        #[serde(default)]
        uncached: u32,
    },
    Hits {
        #[serde(default)]
        limit: u32,
        blocks: Blocks,
        lengths: Vec<u32>,
    },
    Look {
        queue: u32,
        contents: u32,
        #[serde(default)]
        tables: Vec<(u32, u32)>,
        holders: Vec<Vec<u32>>,
    },
    Pop {
        #[serde(default)]
        blocks: Vec<u32>,
    },
    Recede {
        #[serde(default)]
        tokens: u32,
    },
    Reset {
        #[serde(default)]
        refused: bool,
    },
    Step {},
    TakeCopies {
        #[serde(default)]
        pairs: Vec<(u32, u32)>,
    },
    TakeFinalStates {
        #[serde(default)]
        states: Vec<State>,
    },
    TakeNew {
        #[serde(default)]
        blocks: Vec<u32>,
    },
    TakeStates {
        #[serde(default)]
        states: Vec<(u32, State)>,
    },
    Touch {
        blocks: Vec<u32>,
    },
    ZeroAgain {
        #[serde(default)]
        tokens: u32,
    },
}

/// Group, block, tokens.
pub(crate) type State = (u32, u32, u32);

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "independent arguments of vLLM's allocate_slots")]
pub(crate) struct Allocate {
    pub(crate) new: u32,
    pub(crate) hit_tokens: u32,
    pub(crate) hit: Option<Blocks>,
    pub(crate) lookahead: u32,
    pub(crate) external: u32,
    pub(crate) delayed: bool,
    pub(crate) must_fit: bool,
    pub(crate) reserved: u64,
    pub(crate) offset: i64,
    /// Whether nothing else was scheduled in the step.
    pub(crate) alone: bool,
    pub(crate) unzeroed: Vec<u32>,
    /// Whether vLLM raised, after which its state promises nothing.
    pub(crate) raised: bool,
    /// The answer: new blocks, or none where there were not enough.
    pub(crate) blocks: Option<Blocks>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Span {
    pub(crate) num_tokens: u32,
    pub(crate) num_main: u32,
    pub(crate) num_computed: u32,
    pub(crate) num_local: u32,
    pub(crate) prefill_end: u32,
    pub(crate) is_admission: bool,
}

/// A change of the prefix cache.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// Group, digest.
    Removed(u32, u32),
    /// Group, tokens a block, tokens in all, digest before them or 0, digests of the blocks.
    Stored(u32, u32, u32, u32, Vec<u32>),
}

/// Where fixtures lie.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// All fixtures, in the order of their releases.
pub(crate) fn names() -> Vec<String> {
    let names = fs::read_dir(FOLDER).unwrap().map(|file| file.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every life of a fixture.
pub(crate) fn read(name: &str) -> (Head, Vec<Life>) {
    let path = Path::new(FOLDER).join(name);
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut numbered = BufReader::new(GzDecoder::new(file)).lines().map(Result::unwrap).enumerate();
    let (_, head) = numbered.next().expect("a fixture has a first line");
    let head = serde_json::from_str(&head).unwrap();
    let mut lives: Vec<Life> = Vec::new();
    for (number, line) in numbered {
        let place = || format!("{name}, line {}: {line}", number + 1);
        if line.starts_with("{\"life\"") {
            let start: Start = parse(&line, place);
            let name = format!("{} {}", start.life, start.seed);
            lives.push(Life { name, start, steps: Vec::new() });
        } else {
            let step = parse(&line, place);
            lives.last_mut().expect("a life starts before its steps").steps.push(step);
        }
    }
    (head, lives)
}

fn parse<'a, T: Deserialize<'a>>(line: &'a str, place: impl Fn() -> String) -> T {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}", place()))
}
