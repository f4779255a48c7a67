use tokio::sync::Semaphore;

/// A limit on the bytes of the messages in flight. The size of a body is known only once it is received, so
/// room for the largest one is acquired first, and what the message does not need is given back. What its data takes when
/// it is expanded is known then, and room for it is acquired in place of the body's.
pub(super) struct ByteLimit {
    available: Semaphore,
    most: usize,
    /// The largest body that can be put.
    pub(super) largest: usize,
}

impl ByteLimit {
    pub(super) fn new(bytes: usize, largest: usize) -> Self {
        Self {
            available: Semaphore::new(bytes),
            most: bytes,
            largest,
        }
    }

    /// Waits until there is room for one of the largest messages, and acquires room for up to `messages` of them.
    /// Returns for how many.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire(&self, messages: usize) -> usize {
        let first = self.available.acquire_many(self.largest as u32).await;
        first.expect("the semaphore is never closed").forget();
        let most = (messages - 1).min(u32::MAX as usize / self.largest);
        let more = most.min(self.available.available_permits() / self.largest);
        match self
            .available
            .try_acquire_many((more * self.largest) as u32)
        {
            Ok(permits) => {
                permits.forget();
                1 + more
            }
            Err(_) => 1,
        }
    }

    /// Waits until there is room for so many bytes, and acquires it; of more than the limit, for the limit. Returns how
    /// many were acquired.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire_bytes(&self, bytes: usize) -> usize {
        let bytes = bytes.min(self.most).min(u32::MAX as usize);
        let acquired = self.available.acquire_many(bytes as u32).await;
        acquired.expect("the semaphore is never closed").forget();
        bytes
    }

    pub(super) fn release(&self, bytes: usize) {
        self.available.add_permits(bytes);
    }
}
