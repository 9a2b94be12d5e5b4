//! `hybrid-blocks-ops [--text|--calls] [FILE]`: run an input or a life, given as JSON lines or as bytes.
//!
//! Bytes are an input, with `--serving` a life. `--text` prints it as JSON lines. `--calls` prints the setup of an
//! input and then every call that it made, with what was answered, one a line. Without a file, standard input is read.

use std::io::Read;
use std::process::ExitCode;

use ops::{Input, Life, World};

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(printed) => {
            print!("{printed}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: Vec<String>) -> Result<String, String> {
    let file = args.pop_if(|arg| !arg.starts_with("--"));
    let bytes = match &file {
        Some(file) => std::fs::read(file).map_err(|error| format!("{file}: {error}"))?,
        None => read_stdin()?,
    };
    let is_life = args.iter().position(|arg| arg == "--serving").map(|at| args.remove(at));
    let text = std::str::from_utf8(&bytes).ok().filter(|text| text.starts_with('{'));
    let life = match text {
        Some(text) => Life::parse(text),
        None if is_life.is_some() => Ok(Life::decode(&bytes)),
        None => Err(String::new()),
    };
    let input = || match (text, &life) {
        (Some(text), Err(of_life)) => Input::parse(text)
            .map_err(|of_input| format!("as an input: {of_input}\nas a life: {of_life}")),
        _ => Ok(Input::decode(&bytes)),
    };
    match (args.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), &life) {
        ([], Ok(life)) => life.run().map(|_| String::new()),
        ([], Err(_)) => input()?.run().map(|_| String::new()),
        (["--text"], Ok(life)) => Ok(life.to_text()),
        (["--text"], Err(_)) => Ok(input()?.to_text()),
        (["--calls"], Err(_)) => calls(&input()?),
        _ => Err("usage: hybrid-blocks-ops [--serving] [--text|--calls] [FILE]".to_owned()),
    }
}

/// The setup of an input and the calls that it makes, a line each.
fn calls(input: &Input) -> Result<String, String> {
    let mut world = World::new(&input.setup).with_transcript();
    input.run_in(&mut world)?;
    let calls = world.take_transcript();
    let lines = calls.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>();
    let lines = lines.map_err(|error| error.to_string())?;
    let setup = Input { setup: input.setup.clone(), events: vec![] }.to_text();
    Ok(lines.iter().fold(setup, |text, line| text + line + "\n"))
}

fn read_stdin() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
