//! t
use mosaic::picture::*;
fn main() {
    let t = std::time::Instant::now();
    draw_scene(960, 640).save("/tmp/out/scene.png").unwrap();
    eprintln!("scene {:?}", t.elapsed());
    let t = std::time::Instant::now();
    let tiles = draw_tiles();
    eprintln!("tiles {} {:?}", tiles.len(), t.elapsed());
    let cols = 32u32;
    let mut sheet = image::RgbImage::new(cols * 64, (tiles.len() as u32).div_ceil(cols) * 64);
    for (i, (_, tile)) in tiles.iter().enumerate() {
        image::imageops::replace(
            &mut sheet,
            tile,
            (i as u32 % cols * 64) as i64,
            (i as u32 / cols * 64) as i64,
        );
    }
    sheet.save("/tmp/out/sheet.png").unwrap();
}
