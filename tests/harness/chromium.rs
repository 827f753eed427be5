//! Headless Chromium with one tab, driven through its debugging pipe.
#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value returns null for what it lacks"
)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::until;

/// The timeout of a command, and of waits for something to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// Chromium expects the pipe's ends as file descriptors 3 and 4.
const PIPED: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2";

/// What the script of [`Chromium::contrast`] computes for every text on the page.
const CONTRAST: &str = r"
(() => {
  const channel = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (at) => {
    for (; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let worst = { ratio: 99, text: '' };
  for (const at of document.querySelectorAll('body *')) {
    const own = Array.from(at.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !at.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(at).color)), light(ground(at))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: `${at.tagName}.${at.className}: ${at.textContent}` };
  }
  return worst;
})()";

/// A browser with one tab.
#[derive(Debug)]
pub struct Chromium {
    child: Child,
    pipe: ChildStdin,
    messages: UnboundedReceiver<Value>,
    complaints: Vec<String>,
    events: VecDeque<String>,
    session: Option<String>,
    id: u64,
}

impl Chromium {
    /// Starts it with a profile of its own in `dir`.
    pub async fn start(program: &Path, dir: &Path) -> Result<Self> {
        let log = std::fs::File::create(dir.join("chromium.log"))?;
        let mut child = Command::new("sh")
            .args(["-c", PIPED])
            .arg(program)
            .args(["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"])
            .args([
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--lang=en-US",
            ])
            .args(["--force-color-profile=srgb", "--font-render-hinting=none"])
            .arg(format!(
                "--user-data-dir={}",
                dir.join("chromium").display()
            ))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pipe = child.stdin.take().context("a piped stdin")?;
        let answers = child.stdout.take().context("a piped stdout")?;
        let (send, messages) = unbounded_channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let parsed = serde_json::from_slice(&message).unwrap_or(Value::Null);
                if send.send(parsed).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self {
            child,
            pipe,
            messages,
            complaints: Vec::new(),
            events: VecDeque::new(),
            session: None,
            id: 0,
        };
        browser.attach().await?;
        Ok(browser)
    }

    async fn attach(&mut self) -> Result<()> {
        let tab = self
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await?;
        let attach = json!({"targetId": tab["targetId"], "flatten": true});
        let session = self.call("Target.attachToTarget", attach).await?;
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Accessibility"] {
            self.call(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(())
    }

    /// Sends one command of the protocol; returns its result.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.id += 1;
        let mut message = json!({"id": self.id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.pipe.write_all(&bytes)?;
        loop {
            let received = timeout(PATIENCE, self.messages.recv()).await;
            let received = received.with_context(|| format!("{method} takes too long"))?;
            let received = received.context("Chromium has ended; see chromium.log")?;
            if received["id"] != self.id {
                self.note(&received);
                continue;
            }
            if let Some(error) = received.get("error") {
                bail!("{method}: {error}");
            }
            return Ok(received["result"].clone());
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"]["text"].to_string());
            }
            "Runtime.exceptionThrown" => {
                self.complaints.push(params["exceptionDetails"].to_string());
            }
            "Page.javascriptDialogOpening" => {
                self.complaints
                    .push(format!("a dialog: {}", params["message"]));
            }
            method => {
                self.events.push_back(method.to_owned());
                if self.events.len() > 1000 {
                    self.events.pop_front();
                }
            }
        }
    }

    /// Errors on the console since the last call: exceptions, refused content, failed requests.
    pub fn take_complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// Sets the width of the window in pixels, and whether dark colors are preferred.
    pub async fn show(&mut self, width: u32, dark: bool) -> Result<()> {
        let size = json!({"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size)
            .await?;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// Sets whether pages may run scripts.
    pub async fn scripts(&mut self, allowed: bool) -> Result<()> {
        let value = json!({"value": !allowed});
        self.call("Emulation.setScriptExecutionDisabled", value)
            .await?;
        Ok(())
    }

    /// Opens a URL and waits until it is loaded.
    pub async fn open(&mut self, url: &str) -> Result<()> {
        self.events.clear();
        let opened = self.call("Page.navigate", json!({"url": url})).await?;
        if let Some(error) = opened.get("errorText") {
            bail!("{url}: {error}");
        }
        self.loaded().await
    }

    /// Waits until a page that is being opened is loaded.
    pub async fn loaded(&mut self) -> Result<()> {
        while !self
            .events
            .iter()
            .any(|event| event == "Page.loadEventFired")
        {
            let received = timeout(PATIENCE, self.messages.recv()).await;
            let received = received.context("the page is not loaded")?;
            self.note(&received.context("Chromium has ended")?);
        }
        self.events.clear();
        Ok(())
    }

    /// The value of a JavaScript expression.
    pub async fn eval(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params).await?;
        if let Some(thrown) = result.get("exceptionDetails") {
            bail!("{expression}: {thrown}");
        }
        Ok(result["result"]["value"].clone())
    }

    /// The text that the page shows.
    pub async fn text(&mut self) -> Result<String> {
        let text = self.eval("document.body.innerText").await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the page shows all of these texts.
    pub async fn shows(&mut self, texts: &[&str]) -> Result<()> {
        let mut last = String::new();
        let what = format!("the page shows {texts:?}");
        let found = until(&what, PATIENCE, async || {
            // A page that is being replaced has no text.
            last = self.text().await.unwrap_or_default();
            texts.iter().all(|text| last.contains(text)).then_some(())
        })
        .await;
        found.with_context(|| format!("it shows:\n{last}"))
    }

    /// Clicks the link or button that has this text, and waits for the page that it leads to.
    pub async fn click(&mut self, text: &str) -> Result<()> {
        self.events.clear();
        let text = serde_json::to_string(text)?;
        let click = format!(
            "Array.from(document.querySelectorAll('a, button')).find((at) => \
             at.textContent.trim().startsWith({text})).click()"
        );
        self.eval(&click).await?;
        self.loaded().await
    }

    /// Presses a key: `Tab`, `Enter`.
    pub async fn press(&mut self, key: &str) -> Result<()> {
        let text = if key == "Enter" { "\r" } else { "" };
        let code = if key == "Enter" { 13 } else { 9 };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Types text into the focused element.
    pub async fn type_text(&mut self, text: &str) -> Result<()> {
        self.call("Input.insertText", json!({"text": text})).await?;
        Ok(())
    }

    /// The least contrast of a text on the page, and the text.
    pub async fn contrast(&mut self) -> Result<(f64, String)> {
        let worst = self.eval(CONTRAST).await?;
        let ratio = worst["ratio"].as_f64().context("a ratio")?;
        Ok((ratio, worst["text"].as_str().unwrap_or_default().to_owned()))
    }

    /// Roles and names as a screen reader gets them.
    pub async fn spoken(&mut self) -> Result<Vec<(String, String)>> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await?;
        let nodes = tree["nodes"].as_array().context("nodes")?;
        let text = |node: &Value, field: &str| {
            node[field]["value"].as_str().unwrap_or_default().to_owned()
        };
        let seen = nodes.iter().filter(|node| node["ignored"] != true);
        Ok(seen
            .map(|node| (text(node, "role"), text(node, "name")))
            .collect())
    }

    /// Writes a picture of the page, as high as it is but no higher than `height`.
    pub async fn picture(&mut self, path: &Path, height: u64) -> Result<()> {
        let full = self.eval("document.documentElement.scrollHeight").await?;
        let width = self.eval("innerWidth").await?;
        let height = full.as_u64().unwrap_or(height).min(height);
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let params = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
        let shot = self.call("Page.captureScreenshot", params).await?;
        let bytes = base64(shot["data"].as_str().context("a picture")?)?;
        std::fs::write(path, bytes).with_context(|| path.display().to_string())
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0_u32, 0_u32);
    for c in text.bytes().filter(|c| *c != b'=') {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("not base64"),
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            let [.., byte] = (held >> bits).to_be_bytes();
            bytes.push(byte);
        }
    }
    Ok(bytes)
}
