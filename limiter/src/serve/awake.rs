//! A task that wakes itself goes on at once.
//!
//! hyper wakes a connection's task from within, once for every request with a body, when the body
//! that it has just put into its channel is taken out. The runtime takes a task that was woken while
//! it ran for one that yields: it wakes another thread to take it over, and a request moves from one
//! core to the other in the middle for nothing.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

/// Polls a future once more, then and there, if it was woken while it was polled.
///
/// Once only: what is woken again has used up its share of the thread, or waits for others on it.
pub(super) struct Awake<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// Nobody polls: a wake goes to the task.
const ASLEEP: u8 = 0;
/// It is being polled, and was not woken since.
const POLLED: u8 = 1;
/// It is being polled, and was woken since.
const RUNG: u8 = 2;

struct Bell {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before = self
            .state
            .compare_exchange(POLLED, RUNG, Ordering::AcqRel, Ordering::Acquire);
        if before == Err(ASLEEP) {
            self.task.wake();
        }
    }
}

impl<F: Future> Awake<F> {
    pub(super) fn new(future: F) -> Self {
        let bell = Arc::new(Bell {
            state: AtomicU8::new(ASLEEP),
            task: AtomicWaker::new(),
        });
        Self {
            future: Box::pin(future),
            waker: Waker::from(Arc::clone(&bell)),
            bell,
        }
    }

    /// Whether it was woken while it was polled.
    fn poll_once(&mut self) -> (Poll<F::Output>, bool) {
        self.bell.state.store(POLLED, Ordering::Release);
        let polled = self
            .future
            .as_mut()
            .poll(&mut Context::from_waker(&self.waker));
        let rung = self.bell.state.swap(ASLEEP, Ordering::AcqRel) == RUNG;
        (polled, rung)
    }
}

impl<F: Future> Future for Awake<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.bell.task.register(context.waker());
        let (polled, rung) = self.poll_once();
        if polled.is_ready() || !rung {
            return polled;
        }
        let (polled, rung) = self.poll_once();
        if polled.is_pending() && rung {
            context.waker().wake_by_ref();
        }
        polled
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
    fn restless(times: usize) -> (Awake<impl Future<Output = ()>>, Arc<AtomicUsize>) {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let future = poll_fn(move |context: &mut Context<'_>| {
            if counted.fetch_add(1, Ordering::Relaxed) < times {
                context.waker().wake_by_ref();
            }
            Poll::Pending
        });
        (Awake::new(future), polls)
    }

    fn poll<F: Future>(awake: &mut Awake<F>, task: &Arc<Task>) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(task));
        Pin::new(awake).poll(&mut Context::from_waker(&waker))
    }

    #[test]
    fn what_wakes_itself_once_goes_on_and_wakes_nobody() {
        for (wakes, polled, reached) in [(0, 1, 0), (1, 2, 0), (2, 2, 1), (9, 2, 1)] {
            let (mut awake, polls) = restless(wakes);
            let task = Arc::new(Task::default());
            assert!(poll(&mut awake, &task).is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), polled, "{wakes} wakes");
            assert_eq!(task.0.load(Ordering::Relaxed), reached, "{wakes} wakes");
        }
    }

    #[test]
    fn a_wake_between_polls_reaches_the_task_that_polled_last() {
        let (mut awake, _) = restless(0);
        let (first, last) = (Arc::new(Task::default()), Arc::new(Task::default()));
        assert!(poll(&mut awake, &first).is_pending());
        assert!(poll(&mut awake, &last).is_pending());
        awake.waker.wake_by_ref();
        assert_eq!(first.0.load(Ordering::Relaxed), 0);
        assert_eq!(last.0.load(Ordering::Relaxed), 1);
    }
}
