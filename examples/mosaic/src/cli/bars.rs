use std::io::{self, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use mosaic::workflow::client::Progress;
use tracing_subscriber::fmt::MakeWriter;

/// Progress bars on a terminal, and a log writer that does not garble them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bars {
    all: MultiProgress,
    current: Option<(Stage, ProgressBar)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Read,
    Upload,
    Plan,
    Render,
    Join,
}

impl Bars {
    /// Shows that pictures are being read or drawn.
    pub(crate) fn read(&mut self) {
        self.bar(Stage::Read, 0, 0);
    }

    /// Shows the progress of the job.
    pub(crate) fn show(&mut self, progress: Progress) {
        match progress {
            Progress::Uploaded { done, total } => self.bar(Stage::Upload, done, total),
            Progress::Rendered { done, total } if done < total => {
                self.bar(Stage::Render, done, total);
            }
            Progress::Rendered { .. } => self.bar(Stage::Join, 0, 0),
            _ => self.bar(Stage::Plan, 0, 0),
        }
    }

    /// Finishes the current bar, which stays on the screen.
    pub(crate) fn finish(&mut self) {
        if let Some((stage, bar)) = self.current.take() {
            bar.finish_with_message(stage.past());
        }
    }

    /// Prints a warning above the bars.
    pub(crate) fn warn(&self, text: &str) {
        self.all.suspend(|| eprintln!("warning: {text}"));
    }

    fn bar(&mut self, stage: Stage, done: usize, total: usize) {
        if self
            .current
            .as_ref()
            .is_none_or(|current| current.0 != stage)
        {
            self.finish();
            let bar = self.all.add(ProgressBar::new(total as u64));
            bar.set_style(stage.style());
            bar.set_message(stage.present());
            bar.enable_steady_tick(Duration::from_millis(120));
            self.current = Some((stage, bar));
        }
        if let Some((_, bar)) = &self.current {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
    }
}

impl Stage {
    fn present(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Upload => "uploading",
            Self::Plan => "planning",
            Self::Render => "rendering",
            Self::Join => "joining",
        }
    }

    fn past(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Upload => "uploaded",
            Self::Plan => "planned",
            Self::Render => "rendered",
            Self::Join => "joined",
        }
    }

    fn style(self) -> ProgressStyle {
        let template = match self {
            Self::Upload => "{msg:>10} {bar:40} {pos}/{len} files",
            Self::Render => "{msg:>10} {bar:40} {pos}/{len} slices {elapsed}",
            Self::Read | Self::Plan | Self::Join => "{msg:>10} {spinner}",
        };
        ProgressStyle::with_template(template).expect("the templates are valid")
    }
}

impl<'a> MakeWriter<'a> for Bars {
    type Writer = BarsWriter<'a>;

    fn make_writer(&'a self) -> BarsWriter<'a> {
        BarsWriter(&self.all)
    }
}

/// Standard error; the bars are hidden during a write.
#[derive(Debug)]
pub(crate) struct BarsWriter<'a>(&'a MultiProgress);

impl Write for BarsWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
