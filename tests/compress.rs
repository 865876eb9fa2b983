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
compresses!(a_level_and_a_refusal, ["-ai", "--zl=30", "--no-z"]);
compresses!(a_refusal, ["-aiz", "--no-z"]);
compresses!(files_left_out, ["-aiz", "--skip-compress=gz/txt"]);
compresses!(differences, ["-aiz", "--zc=lz4", "--no-whole-file", "-B700"]);

macro_rules! settles {
    ($name:ident, $list:expr, $exit:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("text*30000").env("RSYNC_COMPRESS_LIST", $list);
            w.agree(&[$($option),+]).exits($exit);
        });
    };
}

settles!(the_first_of_a_list, "lz4 zlib", 0, ["-aiz"]);
settles!(a_list_with_unknown_names, "brotli ZLIB", 0, ["-aiz"]);
settles!(a_list_for_each_end, "lz4 zlibx zlib & zlib zlibx", 0, ["-aiz"]);
settles!(a_list_of_nothing, "none", 0, ["-aiz"]);
settles!(a_list_that_is_not_asked, "lz4&", 0, ["-ai", "--zc=zlib"]);
settles!(a_list_without_z, "lz4", 0, ["-ai"]);
