//! What one size of tensor parallelism stores, another loads.

use hybrid_blocks::{Digest, GroupId, Key};
use hybrid_blocks_offload::layout::{GroupLayout, LayoutVersion, ModelIdentity, Part, PartKind};
use hybrid_blocks_offload::{Namespace, StoredKey};
use proptest::prelude::*;

const fn part(kind: PartKind, num_heads: u32, bytes_per_head: u64) -> Part {
    Part { kind, num_heads, bytes_per_head }
}

fn layouts() -> Vec<GroupLayout> {
    let attention = vec![part(PartKind::KeyValue, 4, 6)];
    let grouped = vec![part(PartKind::KeyValue, 2, 10)];
    let latent = vec![part(PartKind::Latent, 1, 7)];
    // Gated delta net: a convolution over queries, keys and values, and one state a value head.
    let delta = vec![
        part(PartKind::Convolution, 4, 3),
        part(PartKind::Convolution, 4, 3),
        part(PartKind::Convolution, 8, 5),
        part(PartKind::Recurrent, 8, 16),
    ];
    [attention, grouped, latent, delta]
        .into_iter()
        .flat_map(|parts| {
            [(1, 1), (3, 2)].map(|(layers, blocks)| {
                GroupLayout::new(parts.clone(), layers, blocks).expect("sizes are above 0")
            })
        })
        .collect()
}

/// The byte that a model of any parallel size computes at a place: it depends on the head alone and
/// never on the rank.
fn byte(part: usize, head: u32, layer: u32, block: u32, at: u64) -> u8 {
    (part as u64 * 31 + u64::from(head) * 7 + u64::from(layer) * 13 + u64::from(block) * 3 + at)
        as u8
}

/// A rank's own tensors, `[part][layer][block][local head]`, with every place of the chunk.
fn places(layout: &GroupLayout, tp_size: u32, rank: u32) -> Vec<(u64, Vec<u8>)> {
    let shard = layout.shard(tp_size, rank).expect("heads divide");
    let mut places = Vec::new();
    for (at, part) in layout.parts().iter().enumerate() {
        for layer in 0..layout.num_layers() {
            for block in 0..layout.blocks_per_chunk() {
                for head in shard.heads[at].clone() {
                    let bytes =
                        (0..part.bytes_per_head).map(|i| byte(at, head, layer, block, i)).collect();
                    places.push((layout.offset(at, head, layer, block), bytes));
                }
            }
        }
    }
    places
}

#[test]
fn any_parallel_size_loads_what_any_other_stored() {
    for layout in layouts() {
        for stored_by in [1, 2, 4, 8] {
            let mut chunk = vec![None; layout.num_bytes() as usize];
            for rank in 0..stored_by {
                let shard = layout.shard(stored_by, rank).expect("heads divide");
                for (start, bytes) in places(&layout, stored_by, rank) {
                    for (at, value) in (start..).zip(bytes) {
                        if shard.stores.iter().any(|range| range.contains(&at)) {
                            assert_eq!(chunk[at as usize].replace(value), None, "stored twice");
                        }
                    }
                }
            }
            for loaded_by in [1, 2, 4, 8] {
                for rank in 0..loaded_by {
                    let shard = layout.shard(loaded_by, rank).expect("heads divide");
                    for (start, bytes) in places(&layout, loaded_by, rank) {
                        for (at, value) in (start..).zip(bytes) {
                            assert!(shard.loads.iter().any(|range| range.contains(&at)));
                            assert_eq!(chunk[at as usize], Some(value), "{layout:?} at {at}");
                        }
                    }
                    let loaded: u64 = shard.loads.iter().map(|it| it.end - it.start).sum();
                    let own: usize =
                        places(&layout, loaded_by, rank).iter().map(|it| it.1.len()).sum();
                    assert_eq!(loaded, own as u64, "nothing is loaded in vain");
                }
            }
        }
    }
}

#[test]
fn uneven_heads_and_wrong_ranks_are_refused() {
    let layout = GroupLayout::new(vec![part(PartKind::KeyValue, 6, 8)], 1, 1).expect("sizes fit");
    assert!(layout.shard(4, 0).unwrap_err().to_string().contains("6 heads"));
    assert!(layout.shard(2, 2).unwrap_err().to_string().contains("rank 2 of 2"));
    assert!(GroupLayout::new(vec![], 1, 1).is_err());
    assert!(GroupLayout::new(vec![part(PartKind::Latent, 1, 0)], 1, 1).is_err());
    assert!(GroupLayout::new(vec![part(PartKind::Latent, 1, u64::MAX)], 2, 1).is_err());
}

const MODEL: ModelIdentity<'_> =
    ModelIdentity { name: "tiny", revision: "1", dtype: "bfloat16", hashing: "sha256" };

#[test]
fn a_version_is_the_same_after_every_restart_and_another_for_other_bytes() {
    let layout = |heads, bytes, layers, blocks| {
        GroupLayout::new(vec![part(PartKind::KeyValue, heads, bytes)], layers, blocks)
            .expect("fits")
    };
    let of = |model| LayoutVersion::new(model, &[3, 7], 16, &layout(4, 64, 2, 1));
    let version = of(MODEL);
    // A change of this constant makes every stored file unreadable: raise the format number with it.
    assert_eq!(format!("{version:?}"), "e0b8929515f09cbe20d3802e01613205");
    let others = [
        of(ModelIdentity { name: "tinier", ..MODEL }),
        of(ModelIdentity { revision: "2", ..MODEL }),
        of(ModelIdentity { dtype: "fp8", ..MODEL }),
        of(ModelIdentity { hashing: "xxh3", ..MODEL }),
        LayoutVersion::new(MODEL, &[3, 8], 16, &layout(4, 64, 2, 1)),
        LayoutVersion::new(MODEL, &[3, 7], 32, &layout(4, 64, 2, 1)),
        LayoutVersion::new(MODEL, &[3, 7], 16, &layout(8, 32, 2, 1)),
        LayoutVersion::new(MODEL, &[3, 7], 16, &layout(4, 64, 1, 2)),
    ];
    assert!(others.iter().all(|other| *other != version));
}

proptest! {
    #[test]
    fn a_stored_key_survives_its_bytes(digest: [u8; 32], group: u32, layout: [u8; 16]) {
        let key = Key { digest: Digest::from(digest), group: GroupId(group) };
        let stored = StoredKey { key, layout: layout.into() };
        prop_assert_eq!(StoredKey::from_bytes(&stored.to_bytes()), stored);
        prop_assert_eq!(stored.to_string().len(), 32 + 2 + group.to_string().len() + 64);
    }
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
