use futures_util::future::{BoxFuture, FutureExt, pending, ready};

use super::*;

type Answer = BoxFuture<'static, Result<Vec<Range>, Error>>;

fn map(host: &str) -> Answer {
    let map = vec![(0, 16383, (host.to_owned(), 6379))];
    ready(Ok(map)).boxed()
}

async fn first_host(answers: Vec<Answer>) -> Option<String> {
    let map = majority(answers.into_iter().collect()).await.ok()?;
    map.into_iter().next().map(|(_, _, (host, _))| host)
}

#[tokio::test]
async fn the_nearest_node_is_outvoted() {
    let answers = vec![map("old"), map("new"), map("new")];
    assert_eq!(first_host(answers).await.as_deref(), Some("new"));
}

#[tokio::test]
async fn nodes_that_hang_or_fail_do_not_count() {
    let failed = || ready(Err(closed())).boxed();
    let answers = vec![pending().boxed(), failed(), map("new")];
    assert_eq!(first_host(answers).await.as_deref(), Some("new"));
    assert_eq!(first_host(vec![failed(), failed()]).await, None);
}
