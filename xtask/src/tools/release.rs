//! Tools that build and read releases: Zig's C compiler, which includes musl's headers and compiles
//! for any processor; root certificates; programs for images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::lookup::{make_executable, on_path};
use super::{Tools, debian, pypi};

const ZIG_VERSION: &str = "0.15.2";
/// The checksums of its wheels for Linux on `x86_64` and aarch64. Its output is shipped.
const ZIG_SHA256: [&str; 2] = [
    "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130",
    "edc0aa60ec964a4cf462d40f68d7de242ddf37fd9a80f2afaee6397059463230",
];
const CERTIFI_VERSION: &str = "2026.10.18";
const CERTIFI_SHA256: &str = "73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62";

/// Python packages that check bills of materials and workflows.
const DIST_CHECKERS: [&str; 3] = [
    "cyclonedx-python-lib[json-validation]==11.12.0",
    "check-jsonschema==0.39.0",
    "zizmor==1.32.0",
];

/// Programs that build scripts call.
pub struct CCompiler {
    /// The compiler, for one processor and musl.
    pub cc: PathBuf,
    /// The archiver.
    pub ar: PathBuf,
}

impl Tools<'_> {
    /// A C compiler for Linux with musl on `arch`. Always the same version, because its output is
    /// shipped.
    pub fn c_compiler(&self, arch: &str) -> Result<CCompiler> {
        let home = self.zig()?;
        let compiler = CCompiler {
            cc: home.join(format!("cc-{arch}")),
            ar: home.join("ar"),
        };
        let target = format!("cc -target {arch}-linux-musl");
        launcher(&compiler.cc, &target)?;
        launcher(&compiler.ar, "ar")?;
        Ok(compiler)
    }

    /// The folder of Zig.
    pub fn zig(&self) -> Result<PathBuf> {
        let home = self.dir.join(format!("zig-{ZIG_VERSION}"));
        self.once(&home, &format!("Zig {ZIG_VERSION} (94 MB)"), |fresh| {
            pypi::unpack_pinned("ziglang", ZIG_VERSION, &ZIG_SHA256, fresh)
                .map_err(|error| error.context("cannot fetch Zig"))?;
            make_executable(&fresh.join("ziglang/zig"))
        })?;
        Ok(home)
    }

    /// Mozilla's root certificates, as one file of PEM.
    pub fn certificates(&self) -> Result<PathBuf> {
        let home = self.dir.join(format!("certifi-{CERTIFI_VERSION}"));
        self.once(&home, "Root certificates (0.1 MB)", |fresh| {
            pypi::unpack_pinned("certifi", CERTIFI_VERSION, &[CERTIFI_SHA256], fresh)
                .map_err(|error| error.context("cannot fetch root certificates"))
        })?;
        Ok(home.join("certifi/cacert.pem"))
    }

    /// A folder of Python packages and programs that check files of a release.
    pub fn dist_checkers(&self) -> Result<PathBuf> {
        let home = self.dir.join("dist-checkers");
        self.once(&home, "Checkers of a release's files (40 MB)", |fresh| {
            pypi::install(&DIST_CHECKERS, fresh)
                .map_err(|error| error.context("cannot fetch the checkers"))
        })?;
        Ok(home)
    }

    /// A program from the system's package of the same name.
    pub fn debian(&self, name: &str, size: &str) -> Result<PathBuf> {
        if let Some(path) = on_path(name) {
            return Ok(path);
        }
        let home = self.dir.join(name);
        let title = format!("{name} from the system's packages ({size})");
        self.once(&home, &title, |fresh| {
            debian::unpack(&[name], &[name], fresh)
                .map_err(|error| error.context(format!("cannot fetch {name}")))
        })?;
        self.checked(&home.join(name), "--version", &home)
    }
}

/// Writes a program that calls Zig with `arguments`. Build scripts pass Rust's name of the target,
/// which has one more part than Zig's.
fn launcher(path: &Path, arguments: &str) -> Result<()> {
    let script = format!(
        "#!/bin/sh\nfor argument do\n    shift\n    case $argument in --target=*) ;; \
         *) set -- \"$@\" \"$argument\" ;; esac\ndone\n\
         exec \"$(dirname \"$0\")/ziglang/zig\" {arguments} \"$@\"\n"
    );
    if std::fs::read_to_string(path).is_ok_and(|found| found == script) {
        return Ok(());
    }
    let fresh = path.with_extension(format!("fresh-{}", std::process::id()));
    std::fs::write(&fresh, script)?;
    make_executable(&fresh)?;
    std::fs::rename(&fresh, path).with_context(|| format!("cannot create {}", path.display()))
}
