//! Numbers of request bodies: a whole number may be written with a fraction of nothing, `4.0`, as clients do whose language has
//! one kind of number. Owns a deserializer around another one; knows no fields.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};

/// Reads as `0` does, and gives whole numbers to those who want integers.
pub(crate) struct Whole<D>(pub(crate) D);

/// What is read goes through here on its way to whoever reads it.
struct Through<V> {
    visitor: V,
    /// An integer is wanted: a number with a fraction of nothing is one.
    integer: bool,
}

impl<V> Through<V> {
    fn new(visitor: V) -> Self {
        Self { visitor, integer: false }
    }
}

macro_rules! deserialize {
    ($($name:ident),* ; $($integer:ident),*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$name(Through::new(visitor))
        })*
        $(fn $integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$integer(Through { visitor, integer: true })
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Whole<D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any, deserialize_bool, deserialize_f32, deserialize_f64, deserialize_char, deserialize_str,
        deserialize_string, deserialize_bytes, deserialize_byte_buf, deserialize_option, deserialize_unit, deserialize_seq,
        deserialize_map, deserialize_identifier, deserialize_ignored_any;
        deserialize_i8, deserialize_i16, deserialize_i32, deserialize_i64, deserialize_u8, deserialize_u16, deserialize_u32,
        deserialize_u64
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, Through::new(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Through::new(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, Through::new(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, Through::new(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Through::new(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Through::new(visitor))
    }
}

macro_rules! visit {
    ($($name:ident: $type:ty),*) => {
        $(fn $name<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.$name(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Through<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    visit! {
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_char: char, visit_str: &str, visit_borrowed_str: &'de str,
        visit_string: String, visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        // Beyond this not every whole number has a float of its own.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match self.integer && value.fract() == 0.0 && value.abs() <= EXACT {
            true if value < 0.0 => self.visitor.visit_i64(value as i64),
            true => self.visitor.visit_u64(value as u64),
            false => self.visitor.visit_f64(value),
        }
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Whole(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Whole(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(Whole(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Whole(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Whole(data))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Whole<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Whole(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Whole<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Whole(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Whole<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Whole(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Whole<A> {
    type Error = A::Error;
    type Variant = Whole<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        self.0.variant_seed(seed).map(|(value, variant)| (value, Whole(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Whole<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Whole(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, Through::new(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Through::new(visitor))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    struct Fields {
        a: Option<i64>,
        b: Option<Vec<u32>>,
        c: Option<f32>,
        d: Option<Value>,
    }

    fn read(text: &str) -> Result<Fields, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        Fields::deserialize(Whole(&mut json)).map_err(|error| error.to_string())
    }

    #[test]
    fn whole_numbers_are_integers_where_these_are_wanted_and_nothing_else_changes() {
        let fields = read(r#"{"a": -4.0, "b": [1.0, 2, 3e2], "c": 1.5, "d": {"x": 4.0}}"#).unwrap();
        let d = Some(serde_json::json!({ "x": 4.0 }));
        assert_eq!(fields, Fields { a: Some(-4), b: Some(vec![1, 2, 300]), c: Some(1.5), d });
        for wrong in [r#"{"a": 4.5}"#, r#"{"a": 1e300}"#, r#"{"b": [-1.0]}"#, r#"{"b": [5e9]}"#, r#"{"a": "4.0"}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
