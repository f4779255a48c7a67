//! A photo mosaic.

pub mod picture;
