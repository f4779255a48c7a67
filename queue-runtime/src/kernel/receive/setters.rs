/// The settings that the builders of all consumers share. Each builder has a field `options: Options`.
macro_rules! consumer_setters {
    () => {
        $crate::kernel::receive::type_setters!();

        /// Sets the visibility timeout: how long a message stays invisible to other consumers after a receive and
        /// after each renewal. The default is that of the queue's metadata, of the type, or 30 seconds.
        pub fn visibility_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options.config.visibility_timeout = Some(timeout);
            self
        }

        /// Sets how long the messages of a [pack](crate::SubmitAll::packed) that was received may wait here and be
        /// handled, until those that are left are taken out of it and become messages of their own. The default is ten
        /// visibility timeouts. It applies to all consumers of the queue in this service.
        pub fn max_pack_hold(mut self, hold: std::time::Duration) -> Self {
            self.options.config.max_pack_hold = Some(hold);
            self
        }

        /// Sets the poison queue, which must be another queue. The default is that of the type, or `QUEUE-poison`.
        pub fn poison_queue(mut self, name: impl Into<String>) -> Self {
            self.options.config.poison_queue = Some(name.into());
            self
        }

        /// Creates the queue if it does not exist, instead of waiting for it or failing. The default for a type's own
        /// queue, but not for one that was [named](crate::QueueService::queue_named).
        pub fn create_queue(mut self) -> Self {
            self.options.missing_queue = $crate::kernel::receive::MissingQueue::Create;
            self
        }
    };
}

/// Those of them that a router has for each type of its messages.
macro_rules! type_setters {
    () => {
        /// Sets the number of attempts after which a message is moved to the poison queue. The default is that of
        /// the queue's metadata, of the type, or 5.
        pub fn poison_threshold(mut self, attempts: u32) -> Self {
            self.options.config.poison_threshold = Some(attempts);
            self
        }

        /// Sets the delay before a retry, unless the handler or the settlement specifies one. The default is
        /// [`RetryPolicy::default`](crate::RetryPolicy::default). The longest one may be as long as the storage can delay a
        /// message.
        pub fn retry(mut self, policy: $crate::RetryPolicy) -> Self {
            self.options.config.retry = Some(policy);
            self
        }

        /// Decides what to do about a failed attempt by the type of its error, which is searched in the error's
        /// [source](std::error::Error::source) chain, outermost first. [`OnError`](crate::OnError) has an example.
        ///
        /// Call it once for each type; the first type that is found decides, in a route before those of its router. An
        /// error of none of them is retried according to the [retry policy](Self::retry). What a handler asks for itself,
        /// by [`Failure::reject`](crate::Failure::reject) for example, is not classified. Nor are panics and timeouts.
        pub fn classify<E: std::error::Error + 'static>(
            mut self,
            decide: impl Fn(&E) -> $crate::OnError + Send + Sync + 'static,
        ) -> Self {
            self.options.classifiers.add(decide);
            self
        }

        /// Sets how long messages from newer programs are postponed before they are moved to the poison
        /// queue. The default is 24 hours.
        pub fn version_patience(mut self, patience: std::time::Duration) -> Self {
            self.options.config.version_patience = Some(patience);
            self
        }

        /// Sets a callback for messages that are moved to the poison queue. The follow-up that it returns is
        /// submitted together with the move, in one step if the backend is atomic, so that a workflow can react
        /// to the failure. See [`Poisoned`](crate::receive::Poisoned). If it cannot be stored, an error is logged and
        /// the message is moved without it.
        ///
        /// The callback must not block.
        pub fn on_poison(
            mut self,
            callback: impl Fn($crate::kernel::receive::Poisoned<M>) -> Option<queue_core::FollowUp>
            + Send
            + Sync
            + 'static,
        ) -> Self
        where
            M: queue_core::Message,
        {
            self.options.on_poison = Some($crate::kernel::receive::OnPoison::new(callback));
            self
        }

        /// Sends the text of the error with which a request fails for good to the instance that waits for the reply, in
        /// [`RequestProblem::Rejected`](crate::request::RequestProblem::Rejected) or
        /// [`Failed`](crate::request::RequestProblem::Failed). Whoever may put messages on the queue can read it then: up
        /// to 8 KiB of the error and its causes. By default, the instance learns only that the message was rejected or
        /// has failed.
        pub fn reply_errors(mut self, on: bool) -> Self {
            self.options.reply_errors = Some(on);
            self
        }
    };
}

pub(crate) use {consumer_setters, type_setters};
