//! The workflow: who sends which message to whom, and what each does with it.
//!
//! The modules, in the order a job passes them:
//!
//! | module | contents |
//! |---|---|
//! | [`messages`] | the messages on the four queues |
//! | [`queues`] | the queues' settings |
//! | [`client`] | submits a job, waits for the mosaic, downloads it |
//! | [`intake`] | the job broker's entrance: records a request, uploads its pictures, submits it |
//! | [`roles`] | job controller, image processor, job broker |
//! | [`changes`] | when the records of requests may have changed |
//! | [`embedded`] | all roles in one process |

pub mod changes;
pub mod client;
pub mod embedded;
pub mod intake;
pub mod messages;
pub mod queues;
pub mod roles;
