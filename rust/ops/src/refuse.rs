//! Calls that must be refused and change nothing.

use hybrid_blocks::Error;

use crate::op::Refusal;
use crate::world::{Check, World, ensure};

/// The call was refused with this error.
macro_rules! refused {
    ($result:expr, $pattern:pat) => {
        let result = $result;
        ensure!(matches!(result, Err($pattern)), "{}: {result:?}", stringify!($result));
    };
}

impl World {
    pub(crate) fn refuse(&mut self, refusal: Refusal, at: usize) -> Check {
        let before = self.dump();
        self.refused(refusal, at)?;
        ensure!(before == self.dump(), "a refused call changed something");
        Ok(())
    }

    fn refused(&mut self, refusal: Refusal, at: usize) -> Check {
        let request = &self.requests[at];
        let (handle, system) = (request.handle, &mut self.system);
        match refusal {
            Refusal::UnknownHandle => {
                let unknown = handle ^ (1 << 40);
                let both = [handle, unknown];
                refused!(system.match_prefix(unknown), Error::UnknownRequest { .. });
                refused!(system.allocate(&both, &[1, 1], 0), Error::UnknownRequest { .. });
                refused!(system.advance(&both, &[0, 0]), Error::UnknownRequest { .. });
                refused!(system.preempt(&both), Error::UnknownRequest { .. });
                refused!(system.free(&both), Error::UnknownRequest { .. });
                refused!(system.append(unknown, &[1], &[]), Error::UnknownRequest { .. });
            }
            Refusal::TwiceInABatch => {
                let twice = [handle, handle];
                refused!(system.allocate(&twice, &[1, 1], 0), Error::InvalidArgument(_));
                refused!(system.advance(&twice, &[0, 0]), Error::InvalidArgument(_));
                refused!(system.preempt(&twice), Error::InvalidArgument(_));
                refused!(system.free(&twice), Error::InvalidArgument(_));
            }
            Refusal::LengthsDiffer => {
                refused!(system.allocate(&[handle], &[1, 1], 0), Error::InvalidArgument(_));
                refused!(system.advance(&[handle], &[]), Error::InvalidArgument(_));
            }
            Refusal::MoreThanThereIsRoomFor => {
                let room = request.allocated.min(request.num_tokens()) - request.computed;
                let most = system.unnoted().advance(&[handle], &[u32::MAX]);
                refused!(most, Error::InvalidArgument(_));
                refused!(system.advance(&[handle], &[room + 1]), Error::InvalidArgument(_));
            }
            Refusal::FewerThanGotRoom => {
                if request.entered > request.computed {
                    let fewer = request.entered - request.computed - 1;
                    refused!(system.advance(&[handle], &[fewer]), Error::InvalidArgument(_));
                }
            }
            Refusal::TooLarge => {
                let too_many = system.max_request_tokens() + 1;
                let most = system.unnoted().allocate(&[handle], &[u32::MAX], u32::MAX);
                refused!(most, Error::RequestTooLarge { .. });
                for (n, lookahead) in [(too_many, 0), (0, too_many)] {
                    let result = system.allocate(&[handle], &[n], lookahead);
                    refused!(result, Error::RequestTooLarge { .. });
                }
            }
            Refusal::IdInUse => {
                refused!(system.add(&request.id, &[], vec![], None), Error::DuplicateRequest(_));
            }
            Refusal::DigestsMissing => {
                let num_tokens = self.setup.hash_block_size;
                let manager = system.unnoted();
                refused!(
                    manager.add_request("new", num_tokens, vec![]),
                    Error::InvalidArgument(_) | Error::RequestTooLarge { .. }
                );
                refused!(manager.append(handle, num_tokens, &[]), Error::InvalidArgument(_));
            }
            Refusal::UnknownGroup => {
                let group = self.setup.groups.len() as u32;
                refused!(system.ask_table(handle, group), Error::UnknownGroup { .. });
            }
        }
        Ok(())
    }
}
