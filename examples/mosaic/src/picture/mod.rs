mod colour;
mod paint;
mod scene;
mod tiles;

pub use scene::{SCENE_SIZE, draw_scene};
pub use tiles::{TILE_SIDE, draw_tiles};
