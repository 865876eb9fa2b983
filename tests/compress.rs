//! Compression: which method is negotiated, reported and rejected. `traffic` counts the bytes on the link.

use crate::kit::{World, synctest};

macro_rules! compresses {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("text*300000 a.gz*5000 d/e= d/f*70000").dest("text*299000@-4 d/f*100");
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

compresses!(by_default, ["-aiz"]);
compresses!(twice, ["-aizz"]);
compresses!(zstd, ["-ai", "--zc=zstd", "--zl=7"]);
compresses!(lz4, ["-ai", "--zc=lz4"]);
compresses!(zlib, ["-ai", "--zc=zlib", "--zl=4"]);
compresses!(zlib_without_compression, ["-ai", "--zc=zlib", "--zl=0"]);
compresses!(zlibx, ["-ai", "--new-compress"]);
compresses!(none_by_name, ["-aiz", "--zc=none", "--zl=3"]);
compresses!(a_level_alone, ["-ai", "--zl=9"]);
compresses!(level_with_no_compress, ["-ai", "--zl=30", "--no-z"]);
compresses!(no_compress, ["-aiz", "--no-z"]);
compresses!(skip_compress, ["-aiz", "--skip-compress=gz/txt"]);
compresses!(deltas, ["-aiz", "--zc=lz4", "--no-whole-file", "-B700"]);

macro_rules! negotiates {
    ($name:ident, $list:expr, $exit:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("text*30000").env("RSYNC_COMPRESS_LIST", $list);
            w.agree(&[$($option),+]).exits($exit);
        });
    };
}

negotiates!(the_first_of_a_list, "lz4 zlib", 0, ["-aiz"]);
negotiates!(a_list_with_unknown_names, "brotli ZLIB", 0, ["-aiz"]);
negotiates!(
    a_list_for_each_end,
    "lz4 zlibx zlib & zlib zlibx",
    0,
    ["-aiz"]
);
negotiates!(a_list_of_nothing, "none", 0, ["-aiz"]);
negotiates!(
    list_is_ignored_with_an_explicit_choice,
    "lz4&",
    0,
    ["-ai", "--zc=zlib"]
);
negotiates!(a_list_without_z, "lz4", 0, ["-ai"]);
