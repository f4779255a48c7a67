use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::output::Output;
use clap::{Args, Parser, Subcommand, ValueEnum};
use pictures::{Layout, Renderer, TileSize};

/// The greatest number of instances.
const MAX_INSTANCES: usize = 64;

/// Makes a photo mosaic with four queues and three roles. Without a command, runs all roles in this
/// process and makes `mosaic.png` from a built-in picture and built-in tiles.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Makes a mosaic with all roles in this process.
    Run(Run),
    /// Runs one role until the process receives a signal to stop.
    Role(Role),
    /// Submits a job to roles in other processes, and waits for the mosaic.
    Submit(Submit),
    /// Shows a page on this machine that takes pictures in and shows how their mosaics come about.
    #[cfg(feature = "web")]
    Serve(Serve),
    /// Lists requests with their progress, or describes one.
    Status(Status),
    /// Removes the blobs of all requests that are finished, and libraries that no other request uses.
    Clean(Clean),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) picture: Picture,
    #[command(flatten)]
    pub(crate) location: Location,
    /// Number of image processors; by default one per core
    #[arg(long, value_name = "N", conflicts_with = "instances", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) processors: Option<u16>,
    #[command(flatten)]
    pub(crate) scaling: Scaling,
}

#[derive(Debug, Args)]
pub(crate) struct Submit {
    #[command(flatten)]
    pub(crate) picture: Picture,
    #[command(flatten)]
    pub(crate) location: Location,
}

#[cfg(feature = "web")]
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) location: Location,
    /// Port of the page; 0 for a free one
    #[arg(long, value_name = "PORT", default_value_t = 8044)]
    pub(crate) port: u16,
    /// Folder of tile pictures to choose from, besides the built-in ones; may be given several times
    #[arg(long, value_name = "FOLDER")]
    pub(crate) library: Vec<PathBuf>,
    /// Number of image processors; by default one per core
    #[arg(long, value_name = "N", conflicts_with_all = ["instances", "broker_only"], value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) processors: Option<u16>,
    /// Runs no other role than the broker in this process
    #[arg(long, conflicts_with = "instances")]
    pub(crate) broker_only: bool,
    #[command(flatten)]
    pub(crate) scaling: Scaling,
    /// File of prices, TOML or JSON; by default an assumed 0.01 USD for 10,000 transactions
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Id of a request; by default all
    pub(crate) request_id: Option<String>,
    #[command(flatten)]
    pub(crate) location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Clean {
    /// Removes requests that are not finished, too, and all libraries
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Role {
    /// Role to run
    pub(crate) role: Kind,
    #[command(flatten)]
    pub(crate) location: Location,
    /// Maximum number of messages in flight per queue; by default one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) tasks: Option<u16>,
    /// Visibility timeout of received messages, such as 2s; each queue has its own default
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) visibility_timeout: Option<Duration>,
    /// Number of attempts after which a message is moved to the poison queue; each queue has its own
    /// default
    #[arg(long, value_name = "N")]
    pub(crate) poison_threshold: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) scaling: Scaling,
}

/// A number of processes by what waits on the queue.
#[derive(Debug, Clone, Args)]
pub(crate) struct Scaling {
    /// Starts and stops processes with an image processor, MIN to MAX, instead of running one in this process
    #[arg(long, value_name = "MIN..MAX", value_parser = parse_range)]
    pub(crate) instances: Option<RangeInclusive<usize>>,
    /// Time in which the waiting slices should be rendered, which decides on the number of instances
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "instances", value_parser = humantime::parse_duration)]
    pub(crate) within: Duration,
    /// Time after the start of an instance in which no instance is stopped, and after a stop in which none is started
    #[arg(long, value_name = "TIME", default_value = "2m", requires = "instances", value_parser = humantime::parse_duration)]
    pub(crate) steady: Duration,
    /// Minimum time that a processor takes for a slice, for tests
    #[arg(long, hide = true, default_value = "0s", value_parser = humantime::parse_duration)]
    pub(crate) pace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Records responses.
    Broker,
    /// Cuts pictures and joins mosaics.
    Controller,
    /// Renders slices.
    Processor,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Picture {
    /// Source picture, PNG or JPEG; by default a built-in one
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Option<PathBuf>,
    /// Folder of tile pictures, PNG or JPEG, with its subfolders; by default built-in tiles
    #[arg(long, value_name = "FOLDER")]
    pub(crate) library: Option<PathBuf>,
    /// Container of tile pictures, in the storage account of the blobs
    #[arg(long, value_name = "NAME", conflicts_with = "library")]
    pub(crate) library_container: Option<String>,
    /// Side of a tile in pixels, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 24,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(TileSize::MAX)))]
    pub(crate) tile_size: u8,
    /// Number of tiles across, 1 to 2000
    #[arg(long, value_name = "N", default_value_t = 120,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Layout::MAX_ACROSS)))]
    pub(crate) across: u32,
    /// Number of slices that the work is divided into, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Layout::MAX_SLICES)))]
    pub(crate) slices: u32,
    /// How closely tiles are tinted to the picture's colours: 0 leaves them as they are, 1 matches exactly
    #[arg(long, value_name = "PART", default_value_t = Renderer::DEFAULT_TINT, value_parser = tint)]
    pub(crate) tint: f32,
    /// File to write the mosaic to, PNG or JPEG by its extension
    #[arg(long, value_name = "FILE", default_value = "mosaic.png")]
    pub(crate) out: Output,
    /// Id of the request; by default a new one. Submitting a request again is safe
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// Keeps the blobs of the request: the picture, its slices and the mosaic
    #[arg(long)]
    pub(crate) keep: bool,
    /// Maximum time to wait for the mosaic
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Location {
    /// Folder of blobs and queues; by default `mosaic-data`, and for `run` a temporary one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Queues: sqlite:PATH, postgres://…, azure://ACCOUNT, a SAS URL or a connection string; by default a SQLite file
    /// in the folder
    #[arg(long, value_name = "URL", env = "QUEUE_URL", hide_env_values = true)]
    pub(crate) queue: Option<String>,
    /// Blobs: azure://ACCOUNT, a SAS URL or a connection string; by default the account of the queues,
    /// or the folder if one is given or the queues are not on Azure
    #[arg(long, value_name = "URL", env = "BLOBS_URL", hide_env_values = true)]
    pub(crate) blobs: Option<String>,
    /// Name under which messages and requests are submitted; by default the host and the process
    #[arg(long, value_name = "NAME")]
    pub(crate) client_id: Option<String>,
}

impl Arguments {
    pub(crate) fn command(self) -> Command {
        self.command.unwrap_or(Command::Run(self.run))
    }
}

impl Location {
    /// The folder of blobs and queues of roles that are processes of their own.
    pub(crate) fn folder(&self) -> PathBuf {
        self.data
            .clone()
            .unwrap_or_else(|| PathBuf::from("mosaic-data"))
    }
}

/// Parses `MIN..MAX`.
fn parse_range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let range = text.split_once("..").and_then(|(min, max)| {
        let (min, max): (usize, usize) = (min.parse().ok()?, max.parse().ok()?);
        (min <= max && (1..=MAX_INSTANCES).contains(&max)).then_some(min..=max)
    });
    range.ok_or_else(|| {
        format!(
            "MIN..MAX is allowed, with MIN from 0 and MAX from 1 to {MAX_INSTANCES}, such as 0..4"
        )
    })
}

/// Returns the given number, or else the number of cores.
pub(crate) fn or_cores(given: Option<u16>) -> usize {
    match given {
        Some(number) => usize::from(number),
        None => available_parallelism().map_or(1, usize::from),
    }
}

fn tint(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        Ok(part) => Err(format!("{part} is not in 0 to 1")),
        Err(error) => Err(format!("{error}; a number from 0 to 1 is allowed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("0..4"), Ok(0..=4));
        assert_eq!(parse_range("2..2"), Ok(2..=2));
        for text in ["", "3", "0..0", "4..1", "1..65", "1..", "1..=4", "a..b"] {
            parse_range(text).expect_err(text);
        }
    }
}
