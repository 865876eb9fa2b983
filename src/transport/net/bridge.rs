//! Connects `async` code to blocking threads: waiting for a future, and a thread that runs the tokio runtime.

use crate::transport::link::LOOK_MS;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A boxed future without a result.
pub type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Blocks this thread until a future completes that a runtime drives. Calls `may_wait` before each wait, at least every
/// [`LOOK_MS`]; its error ends the wait.
pub fn wait<T>(
    future: impl Future<Output = T>,
    mut may_wait: impl FnMut() -> io::Result<()>,
) -> io::Result<T> {
    struct Sleeper(Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Sleeper(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Ok(done);
        }
        may_wait()?;
        std::thread::park_timeout(Duration::from_millis(LOOK_MS.into()));
    }
}

/// A thread that drives sockets and timers. Dropping it lets aborted tasks send their last messages, ends all others,
/// and joins the thread.
pub struct Engine {
    handle: Handle,
    last: Option<oneshot::Sender<Boxed>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Engine> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let handle = runtime.handle().clone();
        let (last, awaited) = oneshot::channel::<Boxed>();
        let drive = move || {
            runtime.block_on(async {
                if let Ok(last) = awaited.await {
                    last.await;
                }
                // Give every task its last turns, mainly to send a message to a peer.
                for _ in 0..LAST_TURNS {
                    tokio::task::yield_now().await;
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(drive)?;
        Ok(Engine {
            handle,
            last: Some(last),
            thread: Some(thread),
        })
    }

    /// Returns the handle to spawn tasks with.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs `last` to its end, then ends everything else. Blocks until then.
    pub fn end(mut self, last: Boxed) {
        if let Some(sender) = self.last.take() {
            // The thread receives it, unless it has panicked.
            let _ = sender.send(last);
        }
    }
}

/// How many turns every task gets before an engine ends.
const LAST_TURNS: usize = 8;

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.last.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by the panic hook, and its links report their loss.
            let _ = thread.join();
        }
    }
}
