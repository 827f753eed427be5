//! The page that compares the algorithms: its pictures are what its commands print, and its limits are
//! valid.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use ctl::{
    commands::simulate::{Timeline, round_up},
    simulate::{self, Engines, Phase, Run},
};
use insight::duration;
use policy::Descriptor;

const RLCTL: &str = env!("CARGO_BIN_EXE_rlctl");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page() -> Result<String> {
    Ok(fs::read_to_string(root().join("docs/algorithms.md"))?)
}

/// The names in `pictures/NAME.svg` and the texts that stand for them.
fn pictures<'p>(page: &'p str) -> Vec<(&'p str, &'p str)> {
    let picture = |line: &'p str| {
        let (text, file) = line.strip_prefix("![")?.split_once("](pictures/")?;
        Some((file.strip_suffix(".svg)")?, text))
    };
    page.lines().filter_map(picture).collect()
}

/// The scenarios of the pictures, each with the traffic of the page's commands.
fn runs() -> Result<Vec<Run>> {
    const TRAFFIC: [&str; 3] = [
        "burst:10@100ms,950ms..1150ms",
        "burst:10@1s,1900ms..2s",
        "constant:20/s,3500ms..5s",
    ];
    let file = fs::read(root().join("docs/pictures/algorithms.yaml"))?;
    let mut scenarios = simulate::read(&limits_file::yaml::read("algorithms.yaml", &file)?)?;
    let phases: Vec<Phase> = { TRAFFIC.iter() }
        .map(|traffic| traffic.parse())
        .collect::<Result<_, _>>()?;
    let steps = simulate::steps(&phases, DURING.start, 6000, 1, &Descriptor::new())?;
    for scenario in &mut scenarios {
        scenario.steps.clone_from(&steps);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let report = runtime.block_on(simulate::run(&scenarios, &mut Engines::Local))?;
    Ok(report.scenarios)
}

/// `PICTURES=overwrite cargo test -p ctl --test commands pictures` draws them again.
#[test]
fn the_pictures_of_the_page_are_of_its_limits_and_traffic() -> Result<()> {
    let page = page()?;
    let pictures = pictures(&page);
    ensure!(pictures.len() == 9, "one for each algorithm: {pictures:?}");
    let runs = runs()?;
    let overwrite = std::env::var("PICTURES").is_ok_and(|value| value == "overwrite");
    for (name, text) in pictures {
        let run = runs
            .iter()
            .find(|run| run.id == name)
            .context("a scenario")?;
        let now = draw(run);
        let file = root().join(format!("docs/pictures/{name}.svg"));
        if overwrite {
            fs::write(&file, &now)?;
        }
        ensure!(
            now == fs::read_to_string(&file)?,
            "{name}.svg is out of date"
        );
        let caption = now
            .replace("<tspan font-weight=\"bold\">", "")
            .replace("</tspan>", "");
        ensure!(
            caption.contains(&format!(">{text}</text>")),
            "{name}.svg does not say {text:?}"
        );
    }
    Ok(())
}

#[test]
fn the_commands_of_the_page_print_what_its_pictures_show() -> Result<()> {
    let page = page()?;
    let script = page
        .split_once("```sh\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    let (script, _) = script.context("the page has no command")?;
    let folder = Path::new(RLCTL).parent().context("rlctl is in a folder")?;
    let mut path = folder.as_os_str().to_owned();
    path.push(":/usr/bin:/bin");
    let output = Command::new("sh")
        .args(["-ec", script])
        .current_dir(root())
        .env("PATH", path)
        .output()?;
    ensure!(
        output.status.success(),
        "the command of the page: {output:?}"
    );
    let printed = String::from_utf8(output.stdout)?;
    for (_, text) in pictures(&page) {
        ensure!(
            printed.lines().any(|line| line == text),
            "{text:?}: {printed}"
        );
    }
    Ok(())
}

#[test]
fn the_limits_of_the_page_are_valid() -> Result<()> {
    let page = page()?;
    let limits = page
        .split('`')
        .filter(|code| code.starts_with("{algorithm: "));
    let mut file = "domain: shop\nlimits:\n".to_owned();
    let mut count = 0;
    for limit in limits {
        count += 1;
        file.push_str(&limit.replacen('{', &format!("  - {{name: choice-{count}, "), 1));
        file.push('\n');
    }
    ensure!(
        count == 8,
        "one limit for each line of the table, not {count}"
    );
    let mut rlctl = Command::new(RLCTL)
        .args(["validate", "-f", "-"])
        .stdin(Stdio::piped())
        .spawn()?;
    rlctl
        .stdin
        .take()
        .context("stdin")?
        .write_all(file.as_bytes())?;
    ensure!(rlctl.wait()?.success(), "not valid:\n{file}");
    Ok(())
}

// --- Timelines as drawings.

/// The most time slots in a drawing.
const SLOTS_MAX: u64 = 120;
const WIDTH: u64 = 960;
const LEFT: u64 = 64;
const TOP: u64 = 40;
const HEIGHT: u64 = 120;
/// The most lines across a chart.
const LINES_MAX: u64 = 12;
// Distinguishable by lightness too.
const ADMITTED: &str = "#2e7d32";
const HELD: &str = "#1e88e5";
const DENIED: &str = "#ef9a9a";
/// The height of the drawing: title, chart, axis.
const PART: u64 = TOP + HEIGHT + 48;

/// The traffic, in milliseconds: it starts when the program's does.
const DURING: Range<u64> = 1_699_920_000_000..1_699_920_006_000;

/// A chart; admitted requests are drawn below denied ones.
fn draw(run: &Run) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {PART}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let timeline = Timeline::new(run, Some(&DURING), SLOTS_MAX);
    svg.push_str("<g transform=\"translate(0 0)\">\n");
    title(&mut svg, &run.id, &timeline);
    lines(&mut svg, &timeline);
    bars(&mut svg, &timeline);
    axes(&mut svg, &timeline);
    svg.push_str("</g>\n");
    svg.push_str("</svg>\n");
    svg
}

fn title(svg: &mut String, id: &str, timeline: &Timeline) {
    let summary = timeline.summary();
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\"><tspan font-weight=\"bold\">{id}</tspan>: \
         {summary}</text>"
    );
    let held = timeline.holds().then_some((790, HELD, "held"));
    let words = [(700, ADMITTED, "admitted"), (860, DENIED, "denied")];
    for (x, color, word) in words.into_iter().chain(held) {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"11\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"20\">{word}</text>",
            x + 16
        );
    }
}

/// A line and its time at round intervals.
fn lines(svg: &mut String, timeline: &Timeline) {
    let slots = u64::try_from(timeline.slots.len()).unwrap_or(0);
    let whole_ms = slots.saturating_mul(timeline.slot_ms).max(1);
    let every_ms = round_up(whole_ms.div_ceil(LINES_MAX));
    let (bottom, below) = (TOP + HEIGHT, TOP + HEIGHT + 18);
    for n in 0..=whole_ms / every_ms {
        let at_ms = n * every_ms;
        let along = u128::from(WIDTH - LEFT - 16) * u128::from(at_ms) / u128::from(whole_ms);
        let x = LEFT + u64::try_from(along).unwrap_or(0);
        let at = duration(at_ms);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x}\" y=\"{below}\" text-anchor=\"middle\">{at}</text>"
        );
    }
}

fn bars(svg: &mut String, timeline: &Timeline) {
    let slots = u64::try_from(timeline.slots.len()).unwrap_or(1).max(1);
    let highest = timeline.highest().max(1);
    let tall = |units: u64| {
        let tall = u128::from(units) * u128::from(HEIGHT) / u128::from(highest);
        u64::try_from(tall).unwrap_or(HEIGHT)
    };
    let x = |n: u64| LEFT + (WIDTH - LEFT - 16) * n / slots;
    for (n, slot) in (0_u64..).zip(&timeline.slots) {
        let (left, wide) = (x(n), (x(n + 1) - x(n)).max(2) - 1);
        let admitted = tall(slot.admitted);
        let passed = tall(slot.admitted.saturating_add(slot.held));
        let all = tall(slot.units());
        let mut bar = |tall: u64, bottom: u64, color: &str| {
            if tall > 0 {
                let y = TOP + HEIGHT - bottom - tall;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left}\" y=\"{y}\" width=\"{wide}\" height=\"{tall}\" fill=\"{color}\"/>"
                );
            }
        };
        bar(admitted, 0, ADMITTED);
        bar(passed - admitted, admitted, HELD);
        bar(all - passed, passed, DENIED);
    }
}

fn axes(svg: &mut String, timeline: &Timeline) {
    let (right, bottom) = (WIDTH - 16, TOP + HEIGHT);
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#555\"/>"
    );
    let labels = [
        (TOP + 10, timeline.highest().to_string()),
        (bottom, "0".to_owned()),
    ];
    for (y, label) in labels {
        let x = LEFT - 6;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>"
        );
    }
    let slot = duration(timeline.slot_ms);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">units per {slot}</text>",
        u64::midpoint(LEFT, right),
        bottom + 36
    );
}
