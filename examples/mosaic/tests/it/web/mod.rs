//! The page of the job broker: what it refuses, and a job from upload to download.

mod jobs;
mod refusals;
mod site;
