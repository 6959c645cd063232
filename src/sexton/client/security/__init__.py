"""How a client proves who it is, and how it is told what it talks to: SASL and TLS, by Kafka's property names."""
