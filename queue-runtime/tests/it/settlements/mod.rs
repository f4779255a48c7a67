//! Settlements whose answer is lost, or that are late or repeated.

mod fixture;
mod follow_ups;
mod lost;
mod repeated;
