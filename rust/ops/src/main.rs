//! `hybrid-blocks-ops [--text|--calls] [FILE]`: run an input or a life, given as JSON lines or as bytes.
//!
//! Bytes are an input, with `--serving` a life. `--text` prints it as JSON lines. `--calls` prints the setup of an
//! input and then every call that it made, with what was answered, one a line. Without a file, standard input is read.

use std::io::Read;
use std::process::ExitCode;

use ops::Input;
use ops::serving::Life;

enum Test {
    Input(Input),
    Life(Life),
}

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
    let is_life = args.iter().position(|arg| arg == "--serving").map(|at| args.remove(at));
    let test = read(&form?, is_life.is_some())?;
    let printed = match (args.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), test) {
        ([], Test::Input(input)) => return input.run(),
        ([], Test::Life(life)) => return life.run().map(drop),
        (["--text"], Test::Input(input)) => input.to_text(),
        (["--text"], Test::Life(life)) => life.to_text(),
        (["--calls"], Test::Input(input)) => {
            let calls = input.transcript()?;
            let lines = calls.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>();
            let lines = lines.map_err(|error| error.to_string())?;
            let setup = Input { setup: input.setup, ops: vec![] }.to_text();
            lines.iter().fold(setup, |text, line| text + line + "\n")
        }
        _ => return Err("usage: hybrid-blocks-ops [--serving] [--text|--calls] [FILE]".to_owned()),
    };
    print!("{printed}");
    Ok(())
}

fn read(bytes: &[u8], is_life: bool) -> Result<Test, String> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.starts_with('{') => match Life::parse(text) {
            Ok(life) => Ok(Test::Life(life)),
            Err(of_life) => Input::parse(text)
                .map(Test::Input)
                .map_err(|of_input| format!("as an input: {of_input}\nas a life: {of_life}")),
        },
        _ if is_life => Ok(Test::Life(Life::decode(bytes))),
        _ => Ok(Test::Input(Input::decode(bytes))),
    }
}

fn read_stdin() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
