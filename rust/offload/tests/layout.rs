//! One size of tensor parallelism loads the chunks of another.

use hybrid_blocks::{Digest, GroupId, Key};
use hybrid_blocks_offload::layout::{
    GroupLayout, LayoutVersion, ModelIdentity, Part, PartKind, StateFormat,
};
use hybrid_blocks_offload::{Namespace, StoredKey};
use proptest::prelude::*;

const fn part(kind: PartKind, rows: u32, num_heads: u32, bytes_per_head: u64) -> Part {
    Part { kind, rows, num_heads, bytes_per_head, is_float32: false }
}

const fn state(num_heads: u32, bytes_per_head: u64) -> Part {
    Part { is_float32: true, ..part(PartKind::Recurrent, 1, num_heads, bytes_per_head) }
}

fn layout(parts: Vec<Part>) -> GroupLayout {
    GroupLayout::new(parts, None).expect("sizes are above 0")
}

/// The byte that a model of any parallel size computes at a place: it depends on the head alone and
/// never on the rank.
fn byte(part: usize, row: u32, head: u32, at: u64) -> u8 {
    let place = part as u64 * 31 + u64::from(row) * 13 + u64::from(head) * 7 + at * 3;
    (place ^ (place >> 8)) as u8
}

/// The heads of a rank, as a list: written down again, without the tested code.
fn heads_of(num_heads: u32, tp_size: u32, rank: u32) -> Vec<u32> {
    let owner =
        |head: u32| (head * tp_size / num_heads)..((head + 1) * tp_size).div_ceil(num_heads);
    (0..num_heads).filter(|&head| owner(head).contains(&rank)).collect()
}

/// A chunk as ranks hold it: `[rank][part][row][own head]`.
fn of_ranks(layout: &GroupLayout, tp_size: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for rank in 0..tp_size {
        for (at, part) in layout.parts().iter().enumerate() {
            for row in 0..part.rows {
                for head in heads_of(part.num_heads, tp_size, rank) {
                    bytes.extend((0..part.bytes_per_head).map(|i| byte(at, row, head, i)));
                }
            }
        }
    }
    bytes
}

fn stored_by(layout: &GroupLayout, tp_size: u32) -> Vec<u8> {
    let mut stored = vec![0xAA; layout.num_bytes() as usize];
    let codec = layout.codec(tp_size).expect("heads divide");
    assert!(codec.encode(&of_ranks(layout, tp_size), &mut stored));
    stored
}

fn loaded_by(layout: &GroupLayout, tp_size: u32, stored: &[u8]) -> Vec<u8> {
    let codec = layout.codec(tp_size).expect("heads divide");
    let mut bytes = vec![0x55; codec.rank_bytes() as usize * tp_size as usize];
    codec.decode(stored, &mut bytes);
    bytes
}

fn any_part() -> impl Strategy<Value = Part> {
    let kind = prop_oneof![
        Just(PartKind::KeyValue),
        Just(PartKind::Convolution),
        Just(PartKind::Recurrent),
        Just(PartKind::Replicated)
    ];
    (kind, 1u32..5, 0u32..5, 1u64..9).prop_map(|(kind, rows, log_heads, bytes)| {
        part(kind, rows, if kind == PartKind::Replicated { 1 } else { 1 << log_heads }, bytes)
    })
}

proptest! {
    #[test]
    fn any_parallel_size_loads_what_any_other_stored(
        parts in prop::collection::vec(any_part(), 1..8),
        from in 0u32..5,
        to in 0u32..5,
    ) {
        let (from, to) = (1 << from, 1 << to);
        let layout = layout(parts);
        let stored = stored_by(&layout, from);
        // Content that one rank alone holds is stored as it is.
        prop_assert_eq!(&stored, &of_ranks(&layout, 1));
        prop_assert!(layout.codec(1).expect("fits").is_identity());
        prop_assert_eq!(loaded_by(&layout, to, &stored), of_ranks(&layout, to));
    }

    #[test]
    fn a_stored_state_is_within_its_formats_bound(
        heads in prop::collection::vec(prop::collection::vec(any_number(), 6), 4),
        to in 0u32..3,
    ) {
        let chunk: Vec<u8> = heads.iter().flatten().flat_map(|it| it.to_le_bytes()).collect();
        for format in [StateFormat::Bfloat16, StateFormat::Float8, StateFormat::Int8] {
            let layout = GroupLayout::new(vec![state(4, 24)], Some(format)).expect("fits");
            let one = layout.codec(1).expect("fits");
            prop_assert!(!one.is_identity());
            let mut stored = vec![0; layout.num_bytes() as usize];
            prop_assert!(one.encode(&chunk, &mut stored));
            // Four states split by head lie as one rank has them.
            let mut restored = vec![0; chunk.len()];
            layout.codec(1 << to).expect("fits").decode(&stored, &mut restored);
            let mut restored = restored.chunks_exact(4)
                .map(|it| f32::from_le_bytes(it.try_into().expect("4 bytes")));
            for head in &heads {
                let peak = head.iter().fold(0f32, |peak, it| peak.max(it.abs()));
                for x in head {
                    let y = restored.next().expect("as many");
                    let bound = bound(format, *x, peak) * (1.0 + 2f32.powi(-20));
                    prop_assert!((y - x).abs() <= bound, "{format:?}: {x} became {y} of {peak}");
                }
            }
        }
    }

    #[test]
    fn the_bytes_of_a_stored_key_are_digest_group_and_layout(digest: [u8; 32], group: u32, layout: [u8; 16]) {
        let key = Key { digest: Digest::from(digest), group: GroupId(group) };
        let stored = StoredKey { key, layout: layout.into() };
        let bytes = [&digest[..], &group.to_le_bytes(), &layout].concat();
        prop_assert_eq!(stored.to_bytes().to_vec(), bytes);
        prop_assert_eq!(stored.to_string().len(), 32 + 2 + group.to_string().len() + 64);
    }
}

fn any_number() -> impl Strategy<Value = f32> {
    (-1f32..1.0, -20i32..20).prop_map(|(value, exponent)| value * 2f32.powi(exponent))
}

fn bound(format: StateFormat, x: f32, peak: f32) -> f32 {
    match format {
        StateFormat::Bfloat16 => 2f32.powi(-8) * x.abs(),
        StateFormat::Int8 => peak / 254.0,
        _ => (2f32.powi(-4) * x.abs()).max(2f32.powi(-10) * peak / 448.0),
    }
}

#[test]
fn heads_that_are_tiny_or_not_finite_spoil_no_other() {
    let heads = [[1e-38, 0.0], [f32::INFINITY, 1.0], [f32::NAN, 2.0], [-3.0, 3.0]];
    let chunk: Vec<u8> = heads.iter().flatten().flat_map(|it| it.to_le_bytes()).collect();
    for format in [StateFormat::Float8, StateFormat::Int8] {
        let layout = GroupLayout::new(vec![state(4, 8)], Some(format)).expect("fits");
        let codec = layout.codec(1).expect("fits");
        let (mut stored, mut restored) = (vec![0; layout.num_bytes() as usize], vec![0; 32]);
        assert!(codec.encode(&chunk, &mut stored));
        codec.decode(&stored, &mut restored);
        let restored: Vec<f32> = restored
            .chunks_exact(4)
            .map(|it| f32::from_le_bytes(it.try_into().expect("4 bytes")))
            .collect();
        assert_eq!(restored[..2], [0.0, 0.0]);
        assert!(restored[2..6].iter().all(|it| it.is_nan()));
        assert!((restored[6] + 3.0).abs() < 1e-5 && (restored[7] - 3.0).abs() < 1e-5);
    }
}

#[test]
fn only_recurrent_states_of_32_bits_are_converted() {
    let others = vec![
        part(PartKind::KeyValue, 2, 2, 8),
        Part { is_float32: true, ..part(PartKind::Convolution, 1, 2, 8) },
        part(PartKind::Recurrent, 1, 2, 8),
    ];
    let same = GroupLayout::new(others.clone(), Some(StateFormat::Int8)).expect("fits");
    assert!(same.codec(1).expect("fits").is_identity());
    assert_eq!(same.num_bytes(), 2 * 2 * 8 + 2 * 8 + 2 * 8);
    let mut parts = others;
    parts.push(state(2, 8));
    for (format, bytes) in
        [(StateFormat::Bfloat16, 2 * 4), (StateFormat::Float8, 2 * 6), (StateFormat::Int8, 2 * 6)]
    {
        let smaller = GroupLayout::new(parts.clone(), Some(format)).expect("fits");
        assert_eq!(smaller.num_bytes(), same.num_bytes() + bytes);
    }
}

#[test]
fn ranks_that_should_hold_the_same_head_and_do_not_are_noticed() {
    let differ = |kind| {
        let layout = layout(vec![part(kind, 2, 2, 3)]);
        let mut chunk = of_ranks(&layout, 4);
        chunk[layout.codec(4).expect("fits").rank_bytes() as usize + 4] ^= 1;
        layout.codec(4).expect("fits").encode(&chunk, &mut [0; 12])
    };
    assert!(!differ(PartKind::KeyValue));
    assert!(differ(PartKind::Convolution), "the engine says that these are alike");
}

#[test]
fn uneven_heads_and_wrong_ranks_are_refused() {
    let message = |parts: Vec<Part>, tp_size| layout(parts).codec(tp_size).unwrap_err().to_string();
    assert!(message(vec![part(PartKind::KeyValue, 1, 6, 8)], 4).contains("6 heads"));
    assert!(message(vec![part(PartKind::Opaque, 1, 4, 8)], 2).contains("of 4 ranks"));
    assert!(message(vec![part(PartKind::Opaque, 1, 2, 8)], 4).contains("of 2 ranks"));
    assert!(message(vec![part(PartKind::KeyValue, 1, 6, 8)], 0).contains("0 tensor-parallel"));
    let whole = part(PartKind::Recurrent, 1, 4, 8);
    assert!(whole.shard(2, 2).unwrap_err().to_string().contains("rank 2 of 2"));
    assert!(GroupLayout::new(vec![], None).is_err());
    assert!(GroupLayout::new(vec![part(PartKind::Replicated, 1, 1, 0)], None).is_err());
    assert!(GroupLayout::new(vec![part(PartKind::Replicated, 0, 1, 1)], None).is_err());
    assert!(GroupLayout::new(vec![part(PartKind::Replicated, 2, 1, u64::MAX)], None).is_err());
    assert!(GroupLayout::new(vec![part(PartKind::Replicated, 1, 1, 1 << 40); 2], None).is_err());
    assert!(GroupLayout::new(vec![state(1, 6)], None).is_err());
    let codec = layout(vec![whole]).codec(2).expect("fits");
    assert!(codec.check(32, 32).is_ok());
    assert!(codec.check(32, 31).unwrap_err().to_string().contains("stored in 31"));
}

const MODEL: ModelIdentity<'_> =
    ModelIdentity { name: "tiny", revision: "1", dtype: "bfloat16", hashing: "sha256" };

#[test]
fn a_version_is_the_same_after_every_restart_and_another_for_other_bytes() {
    let first = part(PartKind::Recurrent, 1, 4, 64);
    let layout = |part, format| GroupLayout::new(vec![part; 2], format).expect("fits");
    let of = |model| LayoutVersion::new(model, &[3, 7], 16, &layout(first, None));
    let version = of(MODEL);
    // A change of this constant makes every stored file unreadable: raise the format number with it.
    assert_eq!(format!("{version:?}"), "8e92ca20be0f24ff3a4b2178621c6f47");
    let with = |layout| LayoutVersion::new(MODEL, &[3, 7], 16, &layout);
    let others = [
        of(ModelIdentity { name: "tinier", ..MODEL }),
        of(ModelIdentity { revision: "2", ..MODEL }),
        of(ModelIdentity { dtype: "fp8", ..MODEL }),
        of(ModelIdentity { hashing: "xxh3", ..MODEL }),
        LayoutVersion::new(MODEL, &[3, 8], 16, &layout(first, None)),
        LayoutVersion::new(MODEL, &[3, 7], 32, &layout(first, None)),
        with(layout(Part { num_heads: 8, bytes_per_head: 32, ..first }, None)),
        with(layout(Part { rows: 4, bytes_per_head: 16, ..first }, None)),
        with(layout(Part { kind: PartKind::Convolution, ..first }, None)),
        with(layout(Part { is_float32: true, ..first }, None)),
        with(layout(first, Some(StateFormat::Int8))),
    ];
    assert!(others.iter().all(|other| *other != version));
}

#[test]
fn a_namespace_knows_its_groups_and_their_order() {
    let (a, b) = (LayoutVersion::from([1; 16]), LayoutVersion::from([2; 16]));
    let namespace = Namespace::new(vec![a, b]);
    let key = |group| Key { digest: Digest::from([9; 32]), group: GroupId(group) };
    assert_eq!(namespace.stored(key(1)).map(|stored| stored.layout), Some(b));
    assert_eq!(namespace.stored(key(2)), None);
    assert_ne!(namespace.fingerprint(), Namespace::new(vec![b, a]).fingerprint());
}
