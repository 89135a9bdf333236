"""What every role agrees on: the messages (``v1``) and the pure arithmetic behind them."""
