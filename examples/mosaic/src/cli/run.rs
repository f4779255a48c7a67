use std::path::Path;
use std::time::{Duration, Instant};

use mosaic::client::{Client, Job};
use mosaic::embedded::Embedded;
use mosaic::messages::{Figures, ImageOutcome};
use mosaic::roles::Settings;
use queue_runtime::{Failure, RequestId};
use tokio::task::spawn_blocking;

use super::Bars;
use super::arguments::{Picture, Run, Submit, or_cores};
use super::job::job;
use super::location::open;

/// The time that handlers have to finish once the mosaic is complete.
const GRACE: Duration = Duration::from_secs(10);

/// Makes a mosaic with all roles in this process.
pub(crate) async fn run(arguments: Run, mut bars: Bars) -> Result<(), Failure> {
    let begun = Instant::now();
    let (data, _temporary) = match arguments.location.data.clone() {
        Some(data) => (data, None),
        None => {
            let temporary = tempfile::Builder::new().prefix("mosaic-").tempdir()?;
            (temporary.path().to_owned(), Some(temporary))
        }
    };
    bars.read();
    let picture = arguments.picture;
    let job = read(picture.clone()).await?;
    let (service, store) = open(&data, &arguments.location).await?;
    let processors = or_cores(arguments.processors);
    let roles = Embedded::start(&service, &store, processors, &Settings::default())?;
    let pictures = job.library.len();
    let client = Client::new(service, store);
    let made = make(&client, job, &picture, &RequestId::random(), &mut bars).await;
    let totals = roles.shutdown(GRACE).await;
    let made = made?;
    println!("{}", describe(&made, &picture.out, pictures));
    let noun = if processors == 1 {
        "processor"
    } else {
        "processors"
    };
    println!(
        "made in {:.1?} by {processors} {noun}; {} messages, {} retries",
        begun.elapsed(),
        totals.completed + totals.poisoned,
        totals.retried,
    );
    Ok(())
}

/// Submits a job to roles in other processes, and waits for the mosaic.
pub(crate) async fn submit(arguments: Submit, mut bars: Bars) -> Result<(), Failure> {
    let begun = Instant::now();
    let request = match arguments.request {
        Some(request) => RequestId::new(request)?,
        None => RequestId::random(),
    };
    bars.read();
    let picture = arguments.picture;
    let job = read(picture.clone()).await?;
    let (service, store) = open(&arguments.location.folder(), &arguments.location).await?;
    let pictures = job.library.len();
    let client = Client::new(service, store);
    let figures = make(&client, job, &picture, &request, &mut bars).await?;
    println!("{}", describe(&figures, &picture.out, pictures));
    println!(
        "made in {:.1?}; {} messages, {} retries; request {request}",
        begun.elapsed(),
        2 + 2 * figures.slices,
        figures.retries,
    );
    Ok(())
}

async fn read(picture: Picture) -> Result<Job, Failure> {
    spawn_blocking(move || job(&picture)).await?
}

async fn make(
    client: &Client,
    job: Job,
    picture: &Picture,
    request: &RequestId,
    bars: &mut Bars,
) -> Result<Figures, Failure> {
    client
        .submit(job, request, |progress| bars.show(progress))
        .await?;
    let outcome = client
        .follow(request, picture.timeout, |progress| bars.show(progress))
        .await?;
    match outcome {
        ImageOutcome::Done { image, figures } => {
            bars.finish();
            client.download(&image, &picture.out).await?;
            Ok(figures)
        }
        ImageOutcome::Failed { reason } => Err(reason.into()),
    }
}

fn describe(figures: &Figures, out: &Path, pictures: usize) -> String {
    let Figures {
        width,
        height,
        tiles,
        slices,
        ..
    } = figures;
    let out = out.display();
    format!(
        "{out}: {width}×{height} pixels, {tiles} tiles from {pictures} pictures, {slices} slices"
    )
}
