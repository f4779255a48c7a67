//! What has been done already, so that a redelivery is not handled again.

mod completed_ids;

pub(crate) use completed_ids::CompletedIds;
