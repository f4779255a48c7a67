//! A photo mosaic: a picture made of many small ones.
//!
//! | module | what |
//! |---|---|
//! | [`picture`] | source and tiles in, slices, mosaics out: pure functions of their input |

pub mod picture;
