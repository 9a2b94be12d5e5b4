//! `hybrid-blocks-ops [--text|--calls] [FILE]`: run an input, given as bytes or as JSON lines.
//!
//! `--text` prints it as JSON lines. `--calls` prints the setup and then every call that it made, with
//! what was answered, one a line. Without a file, standard input is read.

use std::io::Read;
use std::process::ExitCode;

use ops::Input;

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: Vec<String>) -> Result<(), String> {
    let form = args.pop_if(|arg| !arg.starts_with("--")).map_or_else(read_stdin, |file| {
        std::fs::read(&file).map_err(|error| format!("{file}: {error}"))
    });
    let bytes = form?;
    let input = match std::str::from_utf8(&bytes) {
        Ok(text) if text.starts_with('{') => Input::parse(text)?,
        _ => Input::decode(&bytes),
    };
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => input.run(),
        ["--text"] => {
            print!("{}", input.to_text());
            Ok(())
        }
        ["--calls"] => {
            let setup = Input { setup: input.setup.clone(), ops: vec![] }.to_text();
            let lines: Vec<String> = input
                .transcript()?
                .iter()
                .map(|call| serde_json::to_string(call).map_err(|error| error.to_string()))
                .collect::<Result<_, _>>()?;
            print!("{setup}");
            for line in lines {
                println!("{line}");
            }
            Ok(())
        }
        _ => Err("usage: hybrid-blocks-ops [--text|--calls] [FILE]".to_owned()),
    }
}

fn read_stdin() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
