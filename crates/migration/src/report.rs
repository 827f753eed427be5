//! The report of converting a file.

use std::sync::Arc;

use documents::{Form, Node, Problem, Problems, Report, load};

use crate::{File, plain::plain};

/// What the conversion of one file changes and loses.
#[derive(Clone, Debug)]
pub struct FileReport {
    /// The name of the file in messages.
    pub file: String,
    source: Arc<str>,
    changed: Vec<Problem>,
    lost: Vec<Problem>,
}

impl FileReport {
    /// Rules that are converted and mean something else than before.
    pub fn changed(&self) -> &[Problem] {
        &self.changed
    }

    /// What a limits file cannot express.
    pub fn lost(&self) -> &[Problem] {
        &self.lost
    }

    /// What is changed, as warnings with the lines that they are about.
    pub fn warnings(&self) -> Option<Problems> {
        let warnings = Problems::warnings(self.changed.clone())?;
        Some(warnings.in_file(&*self.file, Arc::clone(&self.source)))
    }

    /// What is lost, as errors with the lines that they are about.
    pub fn errors(&self) -> Option<Problems> {
        let errors = Problems::found(self.lost.clone())?;
        Some(errors.in_file(&*self.file, Arc::clone(&self.source)))
    }
}

/// One file while it is converted.
pub(crate) struct Reading {
    file: String,
    source: Arc<str>,
    /// The document, if it could be read at all.
    pub(crate) node: Option<Node>,
    /// With any of these the file cannot be used.
    pub(crate) errors: Report,
    /// See [`FileReport::changed`].
    pub(crate) changed: Report,
    /// See [`FileReport::lost`].
    pub(crate) lost: Report,
}

impl Reading {
    /// Loads a YAML or JSON file.
    ///
    /// # Errors
    /// The bytes are not UTF-8.
    pub(crate) fn load(file: &File<'_>) -> Result<Self, Problems> {
        Self::load_by(file, load)
    }

    /// Loads a file, whose text `read` turns into a document.
    ///
    /// # Errors
    /// The bytes are not UTF-8.
    pub(crate) fn load_by(
        file: &File<'_>,
        read: impl FnOnce(&str, &mut Report) -> Option<Node>,
    ) -> Result<Self, Problems> {
        documents::from_text(file.name, file.bytes, |text| {
            let mut errors = Report::new(Form::File);
            let node = read(text, &mut errors).map(plain);
            Ok(Self {
                file: file.name.to_owned(),
                source: text.into(),
                node,
                errors,
                changed: Report::new(Form::File),
                lost: Report::new(Form::File),
            })
        })
    }

    /// The report of the file.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn finish(self) -> Result<FileReport, Problems> {
        if let Some(problems) = Problems::found(self.errors.problems) {
            return Err(problems.in_file(self.file, self.source));
        }
        Ok(FileReport {
            file: self.file,
            source: self.source,
            changed: self.changed.problems,
            lost: self.lost.problems,
        })
    }
}

/// All files, each loaded as `load` does.
///
/// # Errors
/// The problems of files that cannot be read.
pub(crate) fn load_all(
    files: &[File<'_>],
    load: impl Fn(&File<'_>) -> Result<Reading, Problems>,
) -> Result<Vec<Reading>, Vec<Problems>> {
    let (mut readings, mut wrong) = (Vec::new(), Vec::new());
    for file in files {
        match load(file) {
            Ok(reading) => readings.push(reading),
            Err(problems) => wrong.push(problems),
        }
    }
    if wrong.is_empty() {
        Ok(readings)
    } else {
        Err(wrong)
    }
}

/// The reports of all files.
///
/// # Errors
/// The problems of files that cannot be used.
pub(crate) fn finish_all(readings: Vec<Reading>) -> Result<Vec<FileReport>, Vec<Problems>> {
    let (mut reports, mut wrong) = (Vec::new(), Vec::new());
    for reading in readings {
        match reading.finish() {
            Ok(report) => reports.push(report),
            Err(problems) => wrong.push(problems),
        }
    }
    if wrong.is_empty() {
        Ok(reports)
    } else {
        Err(wrong)
    }
}
