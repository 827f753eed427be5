//! Folders of Python packages.

use std::path::PathBuf;

use anyhow::Result;

use super::{Tools, pypi};

const SCHEMATHESIS_VERSION: &str = "4.32.5";
/// gRPC's own Python implementation, with its compiler.
const GRPC_VERSION: &str = "1.84.0";
/// The same version as the database compiled into jiff (2026f).
const TZDATA_VERSION: &str = "2026.6";
/// Python packages that check the files of `deploy/`: Kubernetes's API, compose files.
const CHECKERS: [&str; 2] = ["kubernetes-validate==1.37.0", "check-jsonschema==0.39.0"];

impl Tools<'_> {
    /// A folder of Python packages and programs that check files of `deploy/`.
    pub fn checkers(&self) -> Result<PathBuf> {
        let home = self.dir.join("checkers");
        self.once(
            &home,
            "Checkers of Kubernetes and compose files (20 MB)",
            |fresh| {
                pypi::install(&CHECKERS, fresh)
                    .map_err(|error| error.context("cannot fetch the checkers"))
            },
        )?;
        Ok(home)
    }

    /// A folder of Python packages that test an HTTP API by its description.
    pub fn schemathesis(&self) -> Result<PathBuf> {
        let home = self
            .dir
            .join(format!("schemathesis-{SCHEMATHESIS_VERSION}"));
        self.once(&home, "Schemathesis (30 MB)", |fresh| {
            let package = format!("schemathesis=={SCHEMATHESIS_VERSION}");
            pypi::install(&[&package], fresh)
                .map_err(|error| error.context("cannot fetch Schemathesis"))
        })?;
        Ok(home)
    }

    /// A folder of Python packages that speak gRPC.
    pub fn grpc(&self) -> Result<PathBuf> {
        let home = self.dir.join(format!("grpc-{GRPC_VERSION}"));
        self.once(&home, "gRPC for Python (15 MB)", |fresh| {
            let packages = ["grpcio", "grpcio-tools"].map(|p| format!("{p}=={GRPC_VERSION}"));
            pypi::install(&packages.each_ref().map(String::as_str), fresh)
                .map_err(|error| error.context("cannot fetch gRPC"))
        })?;
        Ok(home)
    }

    /// A folder with Python's time zones.
    pub fn tzdata(&self) -> Result<PathBuf> {
        let home = self.dir.join(format!("tzdata-{TZDATA_VERSION}"));
        self.once(&home, "Time zones for Python (1 MB)", |fresh| {
            pypi::unpack("tzdata", TZDATA_VERSION, fresh)
                .map_err(|error| error.context("cannot fetch Python's time zones"))
        })?;
        Ok(home)
    }
}
