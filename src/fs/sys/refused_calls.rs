//! Has the kernel refuse system calls, as security profiles, network file systems and containers do. Only in debug builds,
//! for tests: `SPARSYNC_REFUSE`.

use rustix::io::Errno;
use std::io;

/// Which uses of a call are refused, by the lower half of an argument.
#[derive(Clone, Copy)]
enum CallUse {
    Always,
    /// The argument has this value.
    Is(u32, u32),
    /// The argument has one of these bits.
    Has(u32, u32),
}

/// `O_TMPFILE` without `O_DIRECTORY`.
const TMPFILE_BIT: u32 = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// The calls that a test can name, with the kernel's numbers, and the use of them that is refused.
#[rustfmt::skip]
const CALLS: &[(&str, &[libc::c_long], CallUse)] = &[
    ("linkat", &[libc::SYS_linkat], CallUse::Always),
    ("unlink", &[libc::SYS_unlinkat], CallUse::Is(2, 0)),
    ("tmpfile", &[libc::SYS_openat], CallUse::Has(2, TMPFILE_BIT)),
    ("renameat2", &[libc::SYS_renameat2], CallUse::Always),
    ("openat2", &[libc::SYS_openat2], CallUse::Always),
    ("copy_file_range", &[libc::SYS_copy_file_range], CallUse::Always),
    ("statx", &[libc::SYS_statx], CallUse::Always),
    ("fallocate", &[libc::SYS_fallocate], CallUse::Always),
    ("punch", &[libc::SYS_fallocate], CallUse::Has(1, libc::FALLOC_FL_PUNCH_HOLE as u32)),
    ("ficlone", &[libc::SYS_ioctl], CallUse::Is(1, libc::FICLONE as u32)),
    ("seek_data", &[libc::SYS_lseek], CallUse::Is(2, libc::SEEK_DATA as u32)),
    ("preadv2", &[libc::SYS_preadv2], CallUse::Always),
    ("fadvise", &[libc::SYS_fadvise64], CallUse::Always),
    ("flock", &[libc::SYS_flock], CallUse::Always),
    ("fsync", &[libc::SYS_fsync], CallUse::Always),
    ("memfd", &[libc::SYS_memfd_create], CallUse::Always),
    ("symlinkat", &[libc::SYS_symlinkat], CallUse::Always),
    ("mknodat", &[libc::SYS_mknodat], CallUse::Always),
    ("utimensat", &[libc::SYS_utimensat], CallUse::Always),
    ("chown", &[libc::SYS_fchownat, libc::SYS_fchown], CallUse::Always),
    ("chmod", &[libc::SYS_fchmodat, libc::SYS_fchmod, FCHMODAT2], CallUse::Always),
    ("fchmodat2", &[FCHMODAT2], CallUse::Always),
    ("getxattr", &[libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr], CallUse::Always),
    ("setxattr", &[libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr], CallUse::Always),
    ("listxattr", &[libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr], CallUse::Always),
    ("removexattr", &[libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr], CallUse::Always),
];

/// The number is the same on every architecture.
const FCHMODAT2: libc::c_long = 452;

/// Has the kernel refuse calls from now on, in this process and those that it starts. Panics if it cannot, because a
/// test must not pass without its fault.
pub fn refuse_calls() {
    let mut program = Vec::new();
    for (name, errno) in super::hooks::refused_calls() {
        let call = CALLS.iter().find(|(known, ..)| *known == name);
        let (_, numbers, when) = call.expect("SPARSYNC_REFUSE names a known call");
        for number in *numbers {
            add_refusal(&mut program, *number, *when, errno);
        }
    }
    if !program.is_empty() {
        program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
        install(&program).expect("the kernel accepts a filter of system calls");
    }
}

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn instruction(code: u32, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

/// Appends the instructions that refuse one call and leave every other to what follows.
fn add_refusal(
    program: &mut Vec<libc::sock_filter>,
    number: libc::c_long,
    when: CallUse,
    errno: Errno,
) {
    const NUMBER_AT: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    const ARGS_AT: u32 = std::mem::offset_of!(libc::seccomp_data, args) as u32;
    let is_little = cfg!(target_endian = "little");
    let lower_half_at = |arg: u32| ARGS_AT + arg * 8 + if is_little { 0 } else { 4 };
    let condition = match when {
        CallUse::Always => None,
        CallUse::Is(arg, value) => Some((arg, JUMP_IF_EQUAL, value)),
        CallUse::Has(arg, bits) => Some((arg, JUMP_IF_ANY_BIT, bits)),
    };
    let rest_len = if condition.is_some() { 3 } else { 1 };
    program.push(instruction(LOAD_WORD, NUMBER_AT, 0, 0));
    program.push(instruction(JUMP_IF_EQUAL, number as u32, 0, rest_len));
    if let Some((arg, test, value)) = condition {
        program.push(instruction(LOAD_WORD, lower_half_at(arg), 0, 0));
        program.push(instruction(test, value, 0, 1));
    }
    let refusal = libc::SECCOMP_RET_ERRNO | errno.raw_os_error() as u32;
    program.push(instruction(RETURN, refusal, 0, 0));
}

#[allow(unsafe_code)]
fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the call has no pointers.
    let has_privileges_fixed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    // SAFETY: the kernel copies the program, which outlives the call.
    let is_set = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    } == 0;
    if has_privileges_fixed && is_set {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}
