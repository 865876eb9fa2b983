//! `sparsync doctor`: checks what works on this machine and on the way to a host, and names the next step. Changes
//! nothing.

mod ask;
mod directory;
mod doctor_check;
mod files;
mod host;
mod process;
mod programs;
mod remote_grant;
mod route_check;
mod server;
mod ssh_login;

use self::doctor_check::{DoctorCheck, Printer};
use crate::cli::subcommand::Doctor;
use crate::env::Env;
use crate::error::Result;
use crate::exit::Exit;
use crate::trust::paths::Places;

/// Runs the checks and returns 1 if one of them fails.
pub fn run(env: &mut Env, wanted: &Doctor) -> Result<Exit> {
    let places = Places::from_env(env);
    let mut printer = Printer {
        env,
        json: wanted.json,
        failed: false,
    };
    let checks = programs::check(printer.env);
    printer.print(checks)?;
    printer.print(places.as_ref().map_or_else(
        |error| vec![DoctorCheck::of_error("configuration", error)],
        files::check,
    ))?;
    if let Ok(places) = &places {
        printer.print(server::check(places))?;
    }
    printer.print(directory::check(wanted.path.as_deref().unwrap_or(b".")))?;
    let checks = process::check(printer.env);
    printer.print(checks)?;
    if let (Some(reach), Ok(places)) = (&wanted.host, &places) {
        host::check(&mut printer, places, reach)?;
    }
    Ok(if printer.failed {
        Exit::Other(1)
    } else {
        Exit::Ok
    })
}
