//! Windows are checkpoints: a request that resumes needs the last window alone. So windows on the way take no memory from
//! attention that is needed, and are there while no one else needs theirs.

use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, RequestProgress,
};
use hybrid_blocks::{
    BlockManager, BlockStore, CheckpointPolicy, Config, Digest, GroupId, GroupKind, GroupSpec,
    PoolId, SlabStore,
};

const BLOCK: u32 = 16;
const MAX_LEN: u32 = 1_200;

/// Blocks of full attention, and of each kind of window, that a slab holds.
const BLOCKS_PER_SLAB: [u32; 2] = [8, 4];

/// A manager of either set of rules, asked for one prompt at a time.
trait Rules {
    /// Computes a prompt, `answer` tokens more, and ends. Returns the tokens found.
    fn serve(&mut self, prompt: &[u32], answer: u32) -> u32;
}

struct Natural(BlockManager);

impl Rules for Natural {
    fn serve(&mut self, prompt: &[u32], answer: u32) -> u32 {
        let manager = &mut self.0;
        let known: Vec<u32> = prompt.iter().copied().chain(answer_of(prompt, answer)).collect();
        let all = digests(&known);
        let num_prompt = prompt.len() as u32;
        let of_prompt = (num_prompt / BLOCK) as usize;
        let handle = manager.add_request("r", num_prompt, all[..of_prompt].to_vec()).unwrap();
        let found = manager.match_prefix(handle).unwrap().num_tokens;
        let mut at = found;
        while at < num_prompt + answer {
            manager.tick();
            if at >= num_prompt {
                let new = &all[(at / BLOCK) as usize..((at + 1) / BLOCK) as usize];
                manager.append(handle, 1, new).unwrap();
            }
            let step = if at < num_prompt { (num_prompt - at).min(64) } else { 1 };
            assert_eq!(manager.allocate(&[handle], &[step], 0).unwrap(), 1);
            manager.advance(&[handle], &[step]).unwrap();
            at += step;
        }
        manager.free(&[handle]).unwrap();
        manager.check_integrity().unwrap();
        found
    }
}

struct Served(KvCacheManager<SlabStore>);

impl Rules for Served {
    fn serve(&mut self, prompt: &[u32], answer: u32) -> u32 {
        let manager = &mut self.0;
        let known: Vec<u32> = prompt.iter().copied().chain(answer_of(prompt, answer)).collect();
        let all = digests(&known);
        let handle = manager.add("r");
        let num_prompt = prompt.len() as u32;
        let mut progress = RequestProgress {
            num_tokens: num_prompt,
            num_prompt,
            is_waiting: true,
            ..RequestProgress::default()
        };
        *manager.digests_mut(handle).unwrap() = all[..(num_prompt / BLOCK) as usize].to_vec();
        let hit = manager.longest_usable_hit(handle, num_prompt - 1, &progress).unwrap();
        let (mut at, mut computed) = (hit.num_tokens, Some(&hit.blocks[..]));
        while at < num_prompt + answer {
            manager.start_step();
            let step = if at < num_prompt { (num_prompt - at).min(64) } else { 1 };
            progress.num_tokens = num_prompt.max(at + 1);
            let digests = &all[..(progress.num_tokens / BLOCK) as usize];
            *manager.digests_mut(handle).unwrap() = digests.to_vec();
            assert_eq!(manager.next_boundary(handle, &progress, at, at + step).unwrap(), at + step);
            let args = AllocateArgs {
                num_new: step,
                num_new_computed: computed.map_or(0, |_| at),
                computed: computed.take(),
                ..AllocateArgs::default()
            };
            assert!(manager.allocate(handle, &progress, &args).unwrap().is_some());
            at += step;
            (progress.num_computed, progress.is_waiting) = (at, false);
        }
        manager.settle(handle, &progress).unwrap();
        manager.finish(handle).unwrap();
        manager.check_integrity().unwrap();
        hit.num_tokens
    }
}

/// The answer to a prompt: the same whenever it is sent.
fn answer_of(prompt: &[u32], answer: u32) -> impl Iterator<Item = u32> {
    let last = prompt.last().copied().unwrap_or(0);
    (0..answer).map(move |at| last.wrapping_mul(31) ^ (at << 20) ^ 0x5555)
}

fn digests(tokens: &[u32]) -> Vec<Digest> {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let blocks = tokens.chunks_exact(BLOCK as usize);
    let digest = blocks.map(|block| {
        for &token in block {
            hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        Digest::from(bytes)
    });
    digest.collect()
}

/// Full attention beside windows, in `num_slabs` slabs; a drafter drops a block of each.
fn served(num_slabs: u32, windows: &[GroupKind], use_eagle: bool) -> Served {
    let kinds = std::iter::once(GroupKind::Full).chain(windows.iter().copied());
    let groups: Vec<GroupConfig> = kinds
        .map(|kind| GroupConfig {
            pool: PoolId(u32::from(kind != GroupKind::Full)),
            use_eagle,
            ..GroupConfig::new(kind, BLOCK)
        })
        .collect();
    let specs = (0..groups.len() as u32)
        .map(|at| LookupGroup { groups: vec![GroupId(at)], use_eagle })
        .collect();
    let lookup = Lookup::Hybrid { specs, fine_grained: false };
    let config = ManagerConfig {
        checkpoints: Some(CheckpointPolicy::default()),
        drops_eagle_block: use_eagle,
        drops_eagle_checkpoint: use_eagle,
        ..ManagerConfig::new(groups, lookup, BLOCK, BLOCK, MAX_LEN)
    };
    let store = SlabStore::new(num_slabs, &BLOCKS_PER_SLAB).unwrap();
    Served(KvCacheManager::new(store, config).unwrap())
}

fn natural(num_slabs: u32, windows: &[GroupKind]) -> Natural {
    let kinds = std::iter::once(GroupKind::Full).chain(windows.iter().copied());
    let groups = kinds
        .map(|kind| GroupSpec {
            kind,
            block_size: BLOCK,
            pool: PoolId(u32::from(kind != GroupKind::Full)),
        })
        .collect();
    let store = BlockStore::shared(num_slabs, &BLOCKS_PER_SLAB).unwrap();
    Natural(BlockManager::new(store, Config::new(groups, BLOCK)).unwrap())
}

fn prompt(number: u32, num_tokens: u32) -> Vec<u32> {
    (0..num_tokens).map(|at| number * 65_536 + at).collect()
}

const WINDOWS: &[&[GroupKind]] = &[
    &[GroupKind::sliding_window(64)],
    &[GroupKind::sliding_window(33), GroupKind::sliding_window(128)],
    &[GroupKind::Chunked { chunk: 96 }],
];

/// Seats take turns, each prompt its seat's last one and 80 tokens more. Returns turn, seat and tokens found, where
/// they are fewer than its last one left in whole blocks, less `margin`.
fn missed_by_seats(rules: &mut dyn Rules, num_seats: u32, margin: u32) -> Vec<[u32; 3]> {
    let mut missed = Vec::new();
    for turn in 0..6 {
        for seat in 0..num_seats {
            let num_tokens = 320 + 80 * turn;
            let found = rules.serve(&prompt(seat, num_tokens), 1);
            let most = if turn == 0 { 0 } else { num_tokens - 80 - margin };
            if found < most {
                missed.push([turn, seat, found]);
            }
        }
    }
    missed
}

#[test]
fn seats_that_take_turns_find_all_while_what_they_need_fits() {
    // 8 seats of up to 720 tokens: 45 slabs of attention, and room for windows at a few places each. All blocks that left
    // a window would fill another 90 slabs for each.
    for windows in WINDOWS {
        for num_seats in [1, 4, 8] {
            let slabs = 45 + 60;
            let missed = missed_by_seats(&mut served(slabs, windows, false), num_seats, 0);
            assert_eq!(missed, [[0; 3]; 0], "{windows:?}, {num_seats} seats, vLLM's rules");
            let missed = missed_by_seats(&mut natural(slabs, windows), num_seats, 0);
            assert_eq!(missed, [[0; 3]; 0], "{windows:?}, {num_seats} seats");
        }
    }
}

#[test]
fn the_same_prompt_and_its_next_turn_find_all_that_they_can_behind_an_answer() {
    for windows in WINDOWS {
        for (next, most) in [(0, 320 - BLOCK), (80, 320)] {
            let managers: [Box<dyn Rules>; 2] =
                [Box::new(served(70, windows, false)), Box::new(natural(70, windows))];
            for mut rules in managers {
                let first = prompt(7, 320);
                rules.serve(&first, 200);
                // Others push out blocks that no place needs.
                for number in 10..13 {
                    rules.serve(&prompt(number, 800), 1);
                }
                let found = rules.serve(&[&first[..], &prompt(8, next)].concat(), 1);
                assert_eq!(found, most, "{windows:?}");
            }
        }
    }
}

#[test]
fn a_drafter_that_drops_a_block_finds_the_block_before() {
    for windows in &WINDOWS[..2] {
        for num_seats in [1, 8] {
            let missed = missed_by_seats(&mut served(45 + 60, windows, true), num_seats, BLOCK);
            assert_eq!(missed, [[0; 3]; 0], "{windows:?}, {num_seats} seats");
        }
    }
}

#[test]
fn a_prefix_that_many_share_is_found_under_pressure_too() {
    for windows in WINDOWS {
        let shared = prompt(99, 400);
        let managers: [Box<dyn Rules>; 2] =
            [Box::new(served(70, windows, false)), Box::new(natural(70, windows))];
        for mut rules in managers {
            for number in 0..60 {
                let tail = prompt(number, 200 + 16 * (number % 7));
                let found = rules.serve(&[&shared[..], &tail].concat(), 3);
                assert!(number < 2 || found == 400, "{windows:?}: {found} for prompt {number}");
            }
        }
    }
}

#[test]
fn the_next_turn_goes_on_from_the_end_of_the_answer_wherever_that_is() {
    for windows in WINDOWS {
        for answer in 1..40 {
            let managers: [Box<dyn Rules>; 2] =
                [Box::new(served(70, windows, false)), Box::new(natural(70, windows))];
            for mut rules in managers {
                let first = prompt(7, 200);
                rules.serve(&first, answer);
                // It pushes out what nobody is known to need.
                for other in 10..13 {
                    rules.serve(&prompt(other, 800), 1);
                }
                let next: Vec<u32> =
                    first.iter().copied().chain(answer_of(&first, answer)).collect();
                let found = rules.serve(&[&next[..], &prompt(8, 50)].concat(), 1);
                assert_eq!(found, (200 + answer) / BLOCK * BLOCK, "{windows:?}, {answer}");
            }
        }
    }
}

#[test]
fn while_nothing_else_needs_their_memory_all_windows_are_there() {
    for windows in WINDOWS {
        let (long, mut served) = (prompt(3, 900), served(400, windows, false));
        let mut natural = natural(400, windows);
        for rules in [&mut served as &mut dyn Rules, &mut natural] {
            rules.serve(&long, 1);
            for num_tokens in (17..900).step_by(50) {
                let found = rules.serve(&long[..num_tokens], 1);
                assert_eq!(found, (num_tokens as u32 - 1) / BLOCK * BLOCK, "{windows:?}");
            }
        }
    }
}
