//! The text of `--version`, `-VV` and `--version --json`.
//!
//! Programs read the first line byte for byte, words of the capability block, and keys of the JSON.

use crate::cli::flags::own;
use crate::cli::value::names;
use crate::proto::VERSIONS;
use crate::proto::rsync::daemon::AuthDigest;

/// The release of rsync whose command line and behavior this program matches.
pub const RSYNC_VERSION: &str = "3.5.0";
/// The protocol version of that release.
pub const RSYNC_PROTOCOL: u32 = 32;

/// The version of sparsync.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A capability: rsync's words for it, and its key and value in the JSON.
struct Capability(&'static str, &'static str, &'static str);

const CAPABILITIES: &[Capability] = &[
    Capability("64-bit files", "file_bits", "64"),
    Capability("64-bit inums", "inum_bits", "64"),
    Capability("64-bit timestamps", "timestamp_bits", "64"),
    Capability("64-bit long ints", "long_int_bits", "64"),
    Capability("no socketpairs", "socketpairs", "false"),
    Capability("symlinks", "symlinks", "true"),
    Capability("symtimes", "symtimes", "true"),
    Capability("hardlinks", "hardlinks", "true"),
    Capability("hardlink-specials", "hardlink_specials", "true"),
    Capability("hardlink-symlinks", "hardlink_symlinks", "true"),
    Capability("IPv6", "IPv6", "true"),
    Capability("atimes", "atimes", "true"),
    Capability("batchfiles", "batchfiles", "true"),
    Capability("inplace", "inplace", "true"),
    Capability("append", "append", "true"),
    Capability("ACLs", "ACLs", "true"),
    Capability("no ACL-at", "ACL_at", "false"),
    Capability("xattrs", "xattrs", "true"),
    Capability("optional secluded-args", "secluded_args", "\"optional\""),
    Capability("iconv", "iconv", "true"),
    Capability("prealloc", "prealloc", "true"),
    Capability("stop-at", "stop_at", "true"),
    Capability("no crtimes", "crtimes", "false"),
];

/// Returns the text that `--version` prints.
pub fn version_text() -> String {
    let mut out = format!(
        "rsync  version {RSYNC_VERSION}  protocol version {RSYNC_PROTOCOL}\n\
         This is sparsync {VERSION}: not rsync itself, but a replacement for that release.\n\
         Capabilities:\n"
    );
    wrap(&mut out, CAPABILITIES.iter().map(|capability| capability.0));
    out += &format!(
        "Optimizations:\n    no SIMD-roll, no asm-roll, no openssl-crypto, no asm-MD5\n\
         Checksum list:\n    {}\nCompress list:\n    {}\nDaemon auth list:\n    {}\n\n\
         sparsync is free software under the MIT or the Apache-2.0 licence.\nIt comes without any warranty.\n",
        names::all_checksums().join(" "),
        names::all_compressions().join(" "),
        auth_digests().join(" "),
    );
    out
}

/// Writes words, separated by commas, in indented lines that fit a terminal.
fn wrap<'a>(out: &mut String, words: impl ExactSizeIterator<Item = &'a str>) {
    const INDENT: &str = "    ";
    const WIDTH: usize = 76;
    let mut line = String::new();
    let last = words.len();
    for (at, word) in words.enumerate() {
        let comma = if at + 1 < last { "," } else { "" };
        if !line.is_empty() && INDENT.len() + line.len() + 1 + word.len() + comma.len() > WIDTH {
            out.push_str(&format!("{INDENT}{line}\n"));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        line.push_str(comma);
    }
    out.push_str(&format!("{INDENT}{line}\n"));
}

/// Returns the text that `-VV` prints: rsync's keys, and `implementation` and `implementation_version`.
pub fn rsync_version_json() -> String {
    format!(
        r#"{{
  "program": "rsync",
  "version": "{RSYNC_VERSION}",
  "protocol": "{RSYNC_PROTOCOL}.0",
  "implementation": "sparsync",
  "implementation_version": "{VERSION}",
  "capabilities": {{
{}
  }},
  "optimizations": {{
    "SIMD_roll": false, "asm_roll": false, "openssl_crypto": false, "asm_MD5": false
  }},
  "checksum_list": [
    {}
  ],
  "compress_list": [
    {}
  ],
  "daemon_auth_list": [
    {}
  ],
  "license": "MIT OR Apache-2.0",
  "caveat": "sparsync comes without any warranty"
}}
"#,
        capabilities(),
        quoted(&names::all_checksums()),
        quoted(&names::all_compressions()),
        quoted(&auth_digests()),
    )
}

/// Returns the names of the digests for authentication with a daemon.
fn auth_digests() -> Vec<String> {
    AuthDigest::ALL
        .iter()
        .map(|(_, name)| name.to_string())
        .collect()
}

/// Returns the text that `--version --json` prints.
pub fn version_json() -> String {
    let protocols: Vec<String> = VERSIONS.map(|version| version.to_string()).collect();
    format!(
        r#"{{
  "name": "sparsync",
  "version": "{VERSION}",
  "protocol_versions": [{}],
  "rsync": {{ "version": "{RSYNC_VERSION}", "protocol": {RSYNC_PROTOCOL} }},
  "capabilities": {{
{}
  }},
  "methods": {{
    "checksum": [{}],
    "compression": [{}],
    "transport": [{}]
  }}
}}
"#,
        protocols.join(", "),
        capabilities(),
        quoted(&names::all_checksums()),
        quoted(&names::all_compressions()),
        quoted(&own::TRANSPORTS.map(String::from)),
    )
}

/// Returns the members of the JSON object of capabilities.
fn capabilities() -> String {
    let members = CAPABILITIES
        .iter()
        .map(|Capability(_, key, value)| format!("    \"{key}\": {value}"));
    members.collect::<Vec<_>>().join(",\n")
}

/// Returns the elements of a JSON list of names, without the aliases, which are in parentheses.
fn quoted(names: &[String]) -> String {
    let plain = names.iter().filter(|name| !name.starts_with('('));
    plain
        .map(|name| format!("\"{name}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_text_has_the_lines_that_programs_parse() {
        let text = version_text();
        assert!(text.starts_with("rsync  version 3.5.0  protocol version 32\n"));
        let capabilities = text
            .split("Capabilities:")
            .nth(1)
            .and_then(|rest| rest.split("\n\n").next())
            .unwrap();
        assert!(capabilities.contains("ACLs,") && capabilities.contains("xattrs,"));
        assert!(text.contains("sparsync"));
        assert!(
            text.contains("Checksum list:\n    xxh128 xxh3 xxh64 (xxhash) md5 md4 sha1 none\n")
        );
        assert!(text.contains("Compress list:\n    zstd lz4 zlibx zlib none\n"));
        assert!(text.lines().all(|line| line.len() < 80));
    }

    #[test]
    fn version_json_is_balanced_and_has_rsyncs_keys() {
        let text = rsync_version_json();
        for key in [
            "\"program\": \"rsync\"",
            "\"version\": \"3.5.0\"",
            "\"ACLs\": true",
            "\"xattrs\": true",
            "\"atimes\": true",
            "\"crtimes\": false",
            "\"hardlink_symlinks\": true",
            "\"checksum_list\": [\n    \"xxh128\", \"xxh3\", \"xxh64\", \"md5\", \"md4\", \"sha1\", \"none\"\n  ]",
            "\"compress_list\": [\n    \"zstd\", \"lz4\", \"zlibx\", \"zlib\", \"none\"\n  ]",
            "\"implementation\": \"sparsync\"",
        ] {
            assert!(text.contains(key), "{key}");
        }
        assert_eq!(
            text.matches(['{', '[']).count(),
            text.matches(['}', ']']).count()
        );
        assert!(!text.contains(",\n  }") && !text.contains(",\n}"));
    }
}
