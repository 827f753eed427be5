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
