use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mosaic::messages::MAX_SLICES;
use mosaic::picture::{DEFAULT_TINT, MAX_ACROSS, MAX_TILE_SIZE};

/// Makes a photo mosaic by four queues and three roles. Without a command it does all of it in this
/// process, with a picture and tiles of its own, in a temporary folder, and writes `mosaic.png`.
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
    /// Runs one role until it is told to stop.
    Role(Role),
    /// Has a mosaic made by roles that run elsewhere, and waits for it.
    Submit(Submit),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) picture: Picture,
    #[command(flatten)]
    pub(crate) location: Location,
    /// How many image processors share the work; by default one for each core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) processors: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct Submit {
    #[command(flatten)]
    pub(crate) picture: Picture,
    #[command(flatten)]
    pub(crate) location: Location,
    /// The request's id; by default a new one. To submit a request again is safe
    #[arg(long, value_name = "ID")]
    pub(crate) request: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Role {
    /// The role
    pub(crate) role: Kind,
    #[command(flatten)]
    pub(crate) location: Location,
    /// How many messages of a queue are handled at once; by default one for each core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) tasks: Option<u16>,
    /// How long a message stays invisible to others between renewals, such as 2s; each queue has its
    /// own default
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) visibility_timeout: Option<Duration>,
    /// After how many attempts a message is set aside; each queue has its own default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) poison_threshold: Option<u32>,
    /// A test aid: how long a processor holds each slice at least
    #[arg(long, hide = true, default_value = "0s", value_parser = humantime::parse_duration)]
    pub(crate) pace: Duration,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    /// Records the responses.
    Broker,
    /// Cuts pictures and joins mosaics.
    Controller,
    /// Renders slices.
    Processor,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Picture {
    /// The picture to make, PNG or JPEG; without it, one that the program draws itself
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Option<PathBuf>,
    /// A folder of pictures to make it of, PNG or JPEG; without it, tiles that the program draws itself
    #[arg(long, value_name = "FOLDER")]
    pub(crate) library: Option<PathBuf>,
    /// Pixels along each side of a tile, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 24,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_TILE_SIZE)))]
    pub(crate) tile_size: u8,
    /// Tiles side by side, 1 to 2000
    #[arg(long, value_name = "N", default_value_t = 120,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ACROSS)))]
    pub(crate) across: u32,
    /// Into how many slices the work is cut, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SLICES)))]
    pub(crate) slices: u32,
    /// How far tiles take on the picture's colours, 0 to 1
    #[arg(long, value_name = "PART", default_value_t = DEFAULT_TINT, value_parser = tint)]
    pub(crate) tint: f32,
    /// Where the mosaic goes
    #[arg(long, value_name = "FILE", default_value = "mosaic.png")]
    pub(crate) out: PathBuf,
    /// How long to wait for the mosaic
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Location {
    /// The folder of blobs and queues; by default `mosaic-data`, and for `run` a temporary one
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Where the queues are: sqlite:PATH, azure://ACCOUNT, a SAS URL or a connection string; by default
    /// a file in the folder
    #[arg(long, value_name = "URL", env = "QUEUE_URL", hide_env_values = true)]
    pub(crate) queue: Option<String>,
    /// Where the blobs are, if not in a folder: azure://ACCOUNT, a SAS URL or a connection string; by
    /// default in the account of the queues, if they are in one and no folder is given
    #[arg(long, value_name = "URL", env = "BLOBS_URL", hide_env_values = true)]
    pub(crate) blobs: Option<String>,
}

impl Arguments {
    pub(crate) fn command(self) -> Command {
        self.command.unwrap_or(Command::Run(self.run))
    }
}

fn tint(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        Ok(part) => Err(format!("{part} is not in 0 to 1")),
        Err(error) => Err(format!("{error}; 0 to 1 are allowed")),
    }
}
