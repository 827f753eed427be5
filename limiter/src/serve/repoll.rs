//! Polls a future again at once if it woke itself.
//!
//! hyper wakes a connection's task from within: once for every request with a body, when the body is
//! taken from the channel into which hyper has just put it, and twice for every message of a stream.
//! The runtime treats a task woken while it runs as one that yields: it wakes another thread, which
//! takes the task over, and the request moves to another core for nothing.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

/// Polls a future again, at once, while it is woken during its own poll: up to [`POLLS`] times.
///
/// A future that is still woken then has used up its share of the thread, or waits for other tasks on
/// it, so it yields.
pub(super) struct Repoll<F> {
    future: Pin<Box<F>>,
    flag: Arc<WakeFlag>,
    waker: Waker,
}

/// The most polls in a row.
const POLLS: usize = 4;

/// It is not being polled: a wake goes to the task.
const IDLE: u8 = 0;
/// It is being polled, and was not woken since.
const POLLED: u8 = 1;
/// It is being polled, and was woken since.
const WOKEN: u8 = 2;

struct WakeFlag {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before =
            self.state
                .compare_exchange(POLLED, WOKEN, Ordering::AcqRel, Ordering::Acquire);
        if before == Err(IDLE) {
            self.task.wake();
        }
    }
}

impl<F: Future> Repoll<F> {
    pub(super) fn new(future: F) -> Self {
        let flag = Arc::new(WakeFlag {
            state: AtomicU8::new(IDLE),
            task: AtomicWaker::new(),
        });
        Self {
            future: Box::pin(future),
            waker: Waker::from(Arc::clone(&flag)),
            flag,
        }
    }

    /// Polls once; the flag says whether the future was woken meanwhile.
    fn poll_once(&mut self) -> (Poll<F::Output>, bool) {
        self.flag.state.store(POLLED, Ordering::Release);
        let polled = self
            .future
            .as_mut()
            .poll(&mut Context::from_waker(&self.waker));
        let woken = self.flag.state.swap(IDLE, Ordering::AcqRel) == WOKEN;
        (polled, woken)
    }
}

impl<F: Future> Future for Repoll<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.flag.task.register(context.waker());
        for _ in 0..POLLS {
            let (polled, woken) = self.poll_once();
            if polled.is_ready() || !woken {
                return polled;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::poll_fn, sync::atomic::AtomicUsize};

    /// Counts the wakes that reach the task.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A future that wakes itself at its first polls, so often, and is never done.
    fn restless(times: usize) -> (Repoll<impl Future<Output = ()>>, Arc<AtomicUsize>) {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let future = poll_fn(move |context: &mut Context<'_>| {
            if counted.fetch_add(1, Ordering::Relaxed) < times {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        });
        (Repoll::new(future), polls)
    }

    fn poll<F: Future>(repoll: &mut Repoll<F>, task: &Arc<Task>) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(task));
        Pin::new(repoll).poll(&mut Context::from_waker(&waker))
    }

    #[test]
    fn a_self_waking_future_is_polled_again_up_to_three_times_in_place() {
        for (wakes, polled, reached) in [(0, 1, 0), (1, 2, 0), (3, 4, 0), (4, 4, 1), (9, 4, 1)] {
            let (mut repoll, polls) = restless(wakes);
            let task = Arc::new(Task::default());
            assert!(poll(&mut repoll, &task).is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), polled, "{wakes} wakes");
            assert_eq!(task.0.load(Ordering::Relaxed), reached, "{wakes} wakes");
        }
    }

    #[test]
    fn a_wake_between_polls_reaches_the_task_that_polled_last() {
        let (mut repoll, _) = restless(0);
        let (first, last) = (Arc::new(Task::default()), Arc::new(Task::default()));
        assert!(poll(&mut repoll, &first).is_pending());
        assert!(poll(&mut repoll, &last).is_pending());
        repoll.waker.wake_by_ref();
        assert_eq!(first.0.load(Ordering::Relaxed), 0);
        assert_eq!(last.0.load(Ordering::Relaxed), 1);
    }
}
