//! How a point in time is written: RFC 3339 in UTC with nanoseconds, for people and for `jq`.

use std::time::{Duration, SystemTime};

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

/// The last second that RFC 3339 can say: 9999-12-31T23:59:59Z.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// A clock that is set before 1970 or after 9999 is written as the nearest that can be said: the time
/// decides nothing about what happened, and must not keep it from being recorded.
pub(crate) fn written(at: SystemTime) -> String {
    let nearest = at.clamp(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + LAST);
    humantime::format_rfc3339_nanos(nearest).to_string()
}

pub(super) fn serialize<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&written(*at))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_rfc3339(&text).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_far_off_is_written_as_the_nearest_that_can_be_said() {
        let epoch = SystemTime::UNIX_EPOCH;
        let years = |n: u64| Duration::from_secs(n * 365 * 24 * 60 * 60);
        assert_eq!(written(epoch), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(written(epoch - years(100)), written(epoch));
        assert_eq!(
            written(epoch + years(20_000)),
            "9999-12-31T23:59:59.000000000Z"
        );
    }
}
