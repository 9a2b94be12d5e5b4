//! Inputs and lives that once failed, and those that together reach what a fuzzer has reached.

use std::fs;
use std::path::{Path, PathBuf};

use ops::{Script, Setting, Setup, serving};

fn run<S: Setting>(text: &str) -> Result<(), String> {
    Script::<S>::parse(text)?.run().map(drop)
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Runs the file of each test in a folder.
fn run_files(folder: &str, run: fn(&str) -> Result<(), String>) {
    let paths = fs::read_dir(tests().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
    assert!(!paths.is_empty(), "nothing is recorded in {folder}");
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(run(&text), Ok(()), "{}", path.display());
    }
}

/// Runs the tests of a file, with empty lines between them.
fn run_seeds(file: &str, run: fn(&str) -> Result<(), String>) {
    let text = fs::read_to_string(tests().join(file)).unwrap();
    let seeds: Vec<&str> = text.split("\n\n").filter(|it| !it.trim().is_empty()).collect();
    assert!(seeds.len() > 10, "{} seeds in {file}", seeds.len());
    for seed in seeds {
        assert_eq!(run(seed), Ok(()), "{seed}");
    }
}

#[test]
fn every_recorded_input_passes() {
    run_files("recorded", run::<Setup>);
}

#[test]
fn every_recorded_life_passes() {
    run_files("recorded/serving", run::<serving::Setup>);
}

#[test]
fn every_seed_of_operations_passes() {
    run_seeds("seeds/operations.jsonl", run::<Setup>);
}

#[test]
fn every_seed_of_lives_passes() {
    run_seeds("seeds/serving.jsonl", run::<serving::Setup>);
}
