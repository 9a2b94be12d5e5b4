//! Inputs and lives that once failed.

use std::fs;
use std::path::Path;

use ops::Input;
use ops::serving::Life;

fn input(text: &str) -> Result<(), String> {
    Input::parse(text)?.run()
}

fn life(text: &str) -> Result<(), String> {
    Life::parse(text)?.run().map(drop)
}

/// Runs the file of each test in a folder.
fn run_files(folder: &str, run: fn(&str) -> Result<(), String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let paths = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
    assert!(!paths.is_empty(), "nothing is recorded in {}", folder.display());
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(run(&text), Ok(()), "{}", path.display());
    }
}

#[test]
fn every_recorded_input_passes() {
    run_files("recorded", input);
}

#[test]
fn every_recorded_life_passes() {
    run_files("recorded/serving", life);
}
