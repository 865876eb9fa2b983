//! `hosts allow` and `hosts deny`: which clients may use a module.

use super::list_elements;
use crate::filter::name_matches;
use std::net::{IpAddr, Ipv4Addr};

/// A client, as far as its connection shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHost {
    /// The address, an IPv4 one in its own form.
    pub address: IpAddr,
    /// The name by reverse lookup, `UNKNOWN` if it was not found, or `UNDETERMINED` if it was not looked up.
    pub name: Vec<u8>,
}

/// Looks up the addresses of a host name.
pub type ForwardLookup<'a> = &'a dyn Fn(&[u8]) -> Vec<IpAddr>;

/// Decides whether a client may use a module. `lookup` is `None` without `forward lookup`. An element that cannot be
/// evaluated admits no client: in `allow` it matches none, in `deny` all of them. `complain` logs the reason.
pub fn is_allowed(
    host: &ClientHost,
    allow: Option<&[u8]>,
    deny: Option<&[u8]>,
    lookup: Option<ForwardLookup<'_>>,
    complain: &dyn Fn(&[u8]),
) -> bool {
    let matches = |list: &[u8], if_unclear: bool| {
        list_elements(list).any(|element| {
            matches_element(host, element, lookup).unwrap_or_else(|why| {
                complain(&[why.as_bytes(), element].concat());
                if_unclear
            })
        })
    };
    match (allow, deny) {
        (Some(allow), _) if matches(allow, false) => true,
        (Some(_), None) => false,
        (_, Some(deny)) => !matches(deny, true),
        (None, None) => true,
    }
}

fn matches_element(
    host: &ClientHost,
    element: &[u8],
    lookup: Option<ForwardLookup<'_>>,
) -> Result<bool, &'static str> {
    if element.starts_with(b"@") {
        return Err("netgroups are not supported: ");
    }
    if element.contains(&b'%') {
        return Err("addresses with a scope are not supported: ");
    }
    let parsed = |bytes: &[u8]| {
        let text = str::from_utf8(bytes).ok()?;
        // `0/0` is a usual form.
        text.parse()
            .ok()
            .or_else(|| Some(IpAddr::V4(Ipv4Addr::from_bits(text.parse().ok()?))))
    };
    if let Some(slash) = element.iter().position(|&byte| byte == b'/') {
        let address = parsed(&element[..slash]);
        let mask = &element[slash + 1..];
        let address = address.ok_or("malformed address in ")?;
        let mask = mask_bits(mask, &address).ok_or("malformed mask in ")?;
        return Ok(masked(&host.address, mask)
            .is_some_and(|masked_host| Some(masked_host) == masked(&address, mask))
            && host.address.is_ipv4() == address.is_ipv4());
    }
    if let Some(address) = parsed(element) {
        return Ok(address == host.address);
    }
    // As in rsync, wildcards are for names: none matches an address.
    let pattern = element.to_ascii_lowercase();
    if name_matches(&pattern, &host.name.to_ascii_lowercase()) {
        return Ok(true);
    }
    let is_plain = !element.iter().any(|byte| b"*?[".contains(byte));
    if !is_plain {
        return Ok(false);
    }
    let Some(lookup) = lookup else {
        return Ok(false);
    };
    let found = lookup(element);
    if found.is_empty() {
        Err("cannot look up the host name ")
    } else {
        Ok(found.contains(&host.address))
    }
}

/// Returns the mask that a number of bits or an address stands for.
fn mask_bits(mask: &[u8], address: &IpAddr) -> Option<u128> {
    let text = str::from_utf8(mask).ok()?;
    let len = if address.is_ipv4() { 32 } else { 128 };
    if let Ok(bits) = text.parse::<u32>() {
        let all = if len == 32 {
            u128::from(u32::MAX)
        } else {
            u128::MAX
        };
        return (bits <= len).then(|| {
            if bits == 0 {
                0
            } else {
                all << (len - bits) & all
            }
        });
    }
    let mask = text
        .parse::<IpAddr>()
        .ok()
        .filter(|mask| mask.is_ipv4() == address.is_ipv4())?;
    Some(number(&mask))
}

fn number(address: &IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn masked(address: &IpAddr, mask: u128) -> Option<u128> {
    Some(number(address) & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(address: &str, name: &str, allow: &str, deny: &str) -> bool {
        let host = ClientHost {
            address: address.parse().unwrap(),
            name: name.as_bytes().to_vec(),
        };
        let given = |list: &'static str| Some(list.as_bytes()).filter(|list| !list.is_empty());
        let lookup = |name: &[u8]| {
            if name == b"box" {
                vec!["10.1.2.3".parse().unwrap()]
            } else {
                Vec::new()
            }
        };
        let (allow, deny) = (allow.to_owned().leak(), deny.to_owned().leak());
        is_allowed(&host, given(allow), given(deny), Some(&lookup), &|_| {})
    }

    #[test]
    fn lists_combine_as_in_rsync() {
        for (allow, deny, expected) in [
            ("", "", true),
            ("10.1.2.3", "", true),
            ("10.1.2.4", "", false),
            ("", "10.1.2.3", false),
            ("", "10.1.2.4", true),
            ("10.1.2.3", "*", true),
            ("10.1.2.4", "*", false),
            ("10.1.2.4", "10.9.9.9", true),
        ] {
            assert_eq!(
                allowed("10.1.2.3", "UNDETERMINED", allow, deny),
                expected,
                "{allow} / {deny}"
            );
        }
    }

    #[test]
    fn elements_are_addresses_masks_and_names() {
        let v4 = |element: &str| allowed("10.1.2.3", "Host.Example.org", element, "");
        for yes in [
            "10.1.2.3",
            "1.1.1.1 10.1.2.3",
            "1.1.1.1,10.1.2.3",
            "10.1.0.0/16",
            "10.1.2.3/32",
            "0.0.0.0/0",
            "0/0",
            "x/8 10.1.2.3",
            "10.0.0.0/255.0.0.0",
            "*.example.org",
            "host.example.ORG",
            "host.*",
            "box",
            "*",
        ] {
            assert!(v4(yes), "{yes}");
        }
        for no in [
            "10.1.2.4",
            "10.2.0.0/16",
            "*.example.com",
            "example.org",
            "other",
            "::/0",
            "10.1.2.*",
            "[1]0.1.2.3",
        ] {
            assert!(!v4(no), "{no}");
        }
        let v6 = |element: &str| allowed("2001:db8::5", "UNKNOWN", element, "");
        for yes in [
            "2001:db8::5",
            "2001:db8::/32",
            "2001:db8::/ffff:ffff::",
            "::/0",
            "un*n",
        ] {
            assert!(v6(yes), "{yes}");
        }
        for no in ["2001:db8::6", "2001:db9::/32", "0.0.0.0/0", "2001:*"] {
            assert!(!v6(no), "{no}");
        }
    }

    #[test]
    fn elements_that_cannot_be_evaluated_admit_no_client() {
        let host = ClientHost {
            address: "10.1.2.3".parse().unwrap(),
            name: b"UNDETERMINED".to_vec(),
        };
        for (element, why) in [
            ("@net", "netgroups are not supported: @net"),
            (
                "fe80::1%eth0",
                "addresses with a scope are not supported: fe80::1%eth0",
            ),
            ("10.0.0.0/33", "malformed mask in 10.0.0.0/33"),
            ("10.0.0.0/ffff::", "malformed mask in 10.0.0.0/ffff::"),
            ("x/8", "malformed address in x/8"),
            ("unknown", "cannot look up the host name unknown"),
        ] {
            let list = Some(element.as_bytes());
            let complain = |line: &[u8]| assert_eq!(line, why.as_bytes());
            assert!(
                !is_allowed(&host, list, None, Some(&|_| Vec::new()), &complain),
                "{element}"
            );
            assert!(
                !is_allowed(&host, None, list, Some(&|_| Vec::new()), &complain),
                "{element}"
            );
        }
    }
}
