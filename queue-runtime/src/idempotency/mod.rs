//! Records of completed work, so that a redelivered message is not handled again.

mod completed_ids;

pub(crate) use completed_ids::CompletedIds;
