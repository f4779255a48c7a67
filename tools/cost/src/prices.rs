use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use queue_runtime::Failure;
use queue_runtime::meter::{TransactionCounts, TransactionKind};
use serde::{Deserialize, Serialize};

/// Prices of storage transactions, from a configuration file.
///
/// Prices differ by region, redundancy and contract, and change. Copy yours from the provider's list.
///
/// ```
/// use queue_cost::PriceTable;
///
/// let prices: PriceTable = toml::from_str(r#"
///     currency = "EUR"
///     source = "our contract of March 2026"
///     per_10000 = 0.0037      # a price of 10,000 transactions
///
///     [kinds]                 # kinds with another price
///     put = 0.0046
///     update = 0.0046
/// "#)?;
/// assert_eq!(prices.currency, "EUR");
///
/// let error = toml::from_str::<PriceTable>("currency = 'EUR'\nsource = 'none'\nper_10000 = -1").unwrap_err();
/// assert!(error.message().contains("the price of 10,000 transactions is -1"));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
#[non_exhaustive]
pub struct PriceTable {
    /// The currency of the prices, such as `USD`.
    pub currency: String,
    /// Where the prices are from, and of which date.
    pub source: String,
    /// The price of 10,000 transactions of the kinds without a price of their own.
    pub per_10000: f64,
    /// The prices of 10,000 transactions of these kinds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kinds: BTreeMap<TransactionKind, f64>,
}

/// A price that is negative or not finite.
#[derive(Clone, PartialEq, thiserror::Error)]
#[error("the price of 10,000 transactions is {price}{of}; allowed are finite numbers from 0")]
pub struct InvalidPrice {
    price: f64,
    of: String,
}

queue_core::debug_as_text!(InvalidPrice);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    currency: String,
    source: String,
    per_10000: f64,
    #[serde(default)]
    kinds: BTreeMap<TransactionKind, f64>,
}

impl TryFrom<Unchecked> for PriceTable {
    type Error = InvalidPrice;

    fn try_from(unchecked: Unchecked) -> Result<Self, InvalidPrice> {
        let Unchecked {
            currency,
            source,
            per_10000,
            kinds,
        } = unchecked;
        let table = Self::new(currency, source, per_10000)?;
        let mut kinds = kinds.into_iter();
        kinds.try_fold(table, |table, (kind, price)| table.with_kind(kind, price))
    }
}

impl PriceTable {
    /// Creates a table with one price of 10,000 transactions for all kinds.
    ///
    /// # Errors
    /// [`InvalidPrice`] if the price is negative or not finite.
    pub fn new(
        currency: impl Into<String>,
        source: impl Into<String>,
        per_10000: f64,
    ) -> Result<Self, InvalidPrice> {
        Ok(Self {
            currency: currency.into(),
            source: source.into(),
            per_10000: checked(per_10000, None)?,
            kinds: BTreeMap::new(),
        })
    }

    /// Sets the price of 10,000 transactions of a kind.
    ///
    /// # Errors
    /// [`InvalidPrice`] if the price is negative or not finite.
    pub fn with_kind(
        mut self,
        kind: TransactionKind,
        per_10000: f64,
    ) -> Result<Self, InvalidPrice> {
        self.kinds.insert(kind, checked(per_10000, Some(kind))?);
        Ok(self)
    }

    /// An example for Azure Queue Storage: 0.004 US dollars for 10,000 transactions of any kind.
    ///
    /// **The price is an assumption, to be replaced by yours**: it was not compared with the provider's list, which is
    /// at <https://azure.microsoft.com/pricing/details/storage/queues/> and differs by region, redundancy and kind of
    /// transaction. The cost of transactions is proportional to the price. The figures of `queues cost` are examples,
    /// too, because it assumes [another price](Self::read) unless it is given a table of prices. Do not budget with an
    /// example of prices.
    ///
    /// ```
    /// use queue_cost::PriceTable;
    ///
    /// assert!(PriceTable::azure_example().source.contains("assumption"));
    /// ```
    #[must_use]
    pub fn azure_example() -> Self {
        let source = "an assumption for Azure Queue Storage, not compared with its price list";
        Self::new("USD", source, 0.004).expect("a price from 0")
    }

    /// Reads a table from a file, TOML or JSON. Without a file, the price is an assumption: 0.01 US dollars for 10,000
    /// transactions, as in the white paper on queue-based messaging.
    ///
    /// # Errors
    /// If the file cannot be read, or has no table of prices.
    pub fn read(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = file else {
            let source = "an assumption, 0.01 for 10,000 transactions";
            return Ok(Self::new("USD", source, 0.01)?);
        };
        let problem = |error: &dyn fmt::Display| -> Failure {
            format!("read the prices in `{}`: {error}", file.display()).into()
        };
        let text = std::fs::read_to_string(file).map_err(|error| problem(&error))?;
        if file
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            serde_json::from_str(&text).map_err(|error| problem(&error))
        } else {
            toml::from_str(&text).map_err(|error| problem(&error))
        }
    }

    /// Returns the price of transactions.
    #[must_use]
    pub fn cost(&self, transactions: &TransactionCounts) -> Cost {
        self.of_each(transactions.iter())
    }

    fn of_each(&self, transactions: impl Iterator<Item = (TransactionKind, usize)>) -> Cost {
        let price = |kind| self.kinds.get(&kind).copied().unwrap_or(self.per_10000);
        let amounts = transactions.map(|(kind, count)| count as f64 / 10_000.0 * price(kind));
        Cost {
            // Adding 0 avoids the -0 of an empty sum.
            amount: amounts.sum::<f64>() + 0.0,
            currency: self.currency.clone(),
        }
    }
}

fn checked(price: f64, kind: Option<TransactionKind>) -> Result<f64, InvalidPrice> {
    if price.is_finite() && price >= 0.0 {
        return Ok(price);
    }
    let of = kind.map_or_else(String::new, |kind| format!(" for `{kind}`"));
    Err(InvalidPrice { price, of })
}

/// A price of transactions: an estimate, in floating point. From [`PriceTable::cost`].
///
/// ```
/// use queue_cost::PriceTable;
/// use queue_runtime::meter::TransactionCounts;
///
/// let cost = PriceTable::azure_example().cost(&TransactionCounts::default());
/// assert_eq!(cost.to_string(), "0.00 USD");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// The amount, in whole units of the currency.
    pub amount: f64,
    /// The currency.
    pub currency: String,
}

/// Writes cents, or six places if the amount is below a cent.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = if self.amount > 0.0 && self.amount < 0.01 {
            6
        } else {
            2
        };
        write!(f, "{:.places$} {}", self.amount, self.currency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(prices: &PriceTable, puts: usize, receives: usize) -> String {
        let transactions = [
            (TransactionKind::Put, puts),
            (TransactionKind::EmptyReceive, receives),
        ];
        prices.of_each(transactions.into_iter()).to_string()
    }

    #[test]
    fn each_kind_costs_its_own_price() {
        let prices = PriceTable::new("USD", "a test", 0.01).expect("a price");
        assert_eq!(cost(&prices, 0, 475_200_000), "475.20 USD");
        let prices = prices
            .with_kind(TransactionKind::Put, 1.0)
            .expect("a price");
        assert_eq!(cost(&prices, 10_000, 20_000), "1.02 USD");
        assert_eq!(cost(&prices, 1, 0), "0.000100 USD");
    }

    #[test]
    fn a_table_is_the_same_after_a_round_trip_and_refuses_what_is_no_price() {
        let prices = PriceTable::azure_example();
        let prices = prices
            .with_kind(TransactionKind::EmptyReceive, 0.5)
            .expect("a price");
        let json = serde_json::to_string(&prices).expect("JSON");
        assert_eq!(
            serde_json::from_str::<PriceTable>(&json).expect("a table"),
            prices
        );
        for price in [-0.01, f64::NAN, f64::INFINITY] {
            assert!(PriceTable::new("USD", "a test", price).is_err(), "{price}");
        }
        let error = prices
            .with_kind(TransactionKind::Put, -2.0)
            .expect_err("negative");
        let text =
            "the price of 10,000 transactions is -2 for `put`; allowed are finite numbers from 0";
        assert_eq!(error.to_string(), text);
        let unknown =
            toml::from_str::<PriceTable>("currency='USD'\nsource=''\nper_10000=1\nper_1000=2");
        assert!(
            unknown
                .expect_err("unknown")
                .message()
                .contains("unknown field `per_1000`")
        );
    }
}
