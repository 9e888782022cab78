from streams.store import StreamStore
from streams.stores.memory import MemoryStore
from tests.streams.retention_contract import RetentionContract
from tests.streams.store_contract import StoreContract


class TestMemoryStore(StoreContract, RetentionContract):
    durable = False

    async def open_store(self) -> StreamStore:
        return MemoryStore()
